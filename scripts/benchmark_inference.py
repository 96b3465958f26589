"""The inference benchmark: see `polyguard.cli.benchmark_inference`."""

from polyguard.cli.benchmark_inference import main

raise SystemExit(main())
