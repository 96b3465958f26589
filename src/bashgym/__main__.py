"""`python -m bashgym` is `bashgym`."""

import sys

from bashgym.cli.main import main

sys.exit(main())
