"""Training on a Space: see `polyguard.cli.deploy_training_space`."""

from polyguard.cli.deploy_training_space import main

raise SystemExit(main())
