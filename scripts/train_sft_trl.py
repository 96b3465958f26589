"""Supervised training: see `polyguard.cli.train_sft_trl`."""

from polyguard.cli.train_sft_trl import main

raise SystemExit(main())
