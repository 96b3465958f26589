"""Inference from saved files: see `polyguard.cli.test_inference_postsave`."""

from polyguard.cli.test_inference_postsave import main

raise SystemExit(main())
