"""The active model: see `polyguard.cli.activate_sweep_model`."""

from polyguard.cli.activate_sweep_model import main

raise SystemExit(main())
