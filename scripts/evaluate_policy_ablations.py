"""Ablations of policy stacks: see `polyguard.cli.evaluate_policy_ablations`."""

from polyguard.cli.evaluate_policy_ablations import main

raise SystemExit(main())
