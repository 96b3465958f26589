"""The improvement report: see `polyguard.cli.evaluate_compare_runs`."""

from polyguard.cli.evaluate_compare_runs import main

raise SystemExit(main())
