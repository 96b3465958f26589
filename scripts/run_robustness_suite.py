"""Robustness of a policy: see `polyguard.cli.run_robustness_suite`."""

from polyguard.cli.run_robustness_suite import main

raise SystemExit(main())
