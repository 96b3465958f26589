"""Training corpora: see `polyguard.cli.build_training_corpus`."""

from polyguard.cli.build_training_corpus import main

raise SystemExit(main())
