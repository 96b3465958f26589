"""Every ledger test that is not about SQLite's file runs again here, on PostgreSQL's fixtures."""

import pytest
from test_ledger_metrics import *  # noqa: F403
from test_ledger_records import *  # noqa: F403
from test_ledger_runs import *  # noqa: F403

pytestmark = pytest.mark.postgres
