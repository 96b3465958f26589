"""Baselines without a model: see `polyguard.cli.evaluate_baselines`."""

from polyguard.cli.evaluate_baselines import main

raise SystemExit(main())
