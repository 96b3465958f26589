"""The metric store: integer keys, rows clustered by (run, name, step), one row of time and epoch a step.

A point that is not finite has value NULL and its name in `flag`. `metric_latest` makes "which runs of this project
have this metric" and "where does it stand" one index range each, however long the series are.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
metadata = sa.MetaData()


def keys(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, INTEGER, nullable=False) for name in names]


sa.Table(
    "metric_names",
    metadata,
    sa.Column("name_key", INTEGER, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
)
sa.Table(
    "metric_points",
    metadata,
    *keys("run_key", "name_key", "step"),
    sa.Column("value", sa.Double),
    sa.Column("flag", sa.Text),
    sa.PrimaryKeyConstraint("run_key", "name_key", "step"),
    sqlite_with_rowid=False,
)
sa.Table(
    "metric_steps",
    metadata,
    *keys("run_key", "step"),
    sa.Column("ts", sa.Double, nullable=False),
    sa.Column("epoch", sa.Double),
    *keys("attempt"),
    sa.PrimaryKeyConstraint("run_key", "step"),
    sqlite_with_rowid=False,
)
latest = sa.Table(
    "metric_latest",
    metadata,
    *keys("run_key", "name_key", "project_key", "step"),
    sa.Column("value", sa.Double),
    sa.Column("flag", sa.Text),
    sa.PrimaryKeyConstraint("run_key", "name_key"),
    sqlite_with_rowid=False,
)
sa.Index("ix_metric_latest_project", latest.c.project_key, latest.c.name_key, latest.c.run_key)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
