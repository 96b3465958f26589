"""Training on rewards of the environment: see `polyguard.cli.train_grpo_trl`."""

from polyguard.cli.train_grpo_trl import main

raise SystemExit(main())
