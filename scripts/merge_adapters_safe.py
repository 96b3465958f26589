"""Merging: see `polyguard.cli.merge_adapters_safe`."""

from polyguard.cli.merge_adapters_safe import main

raise SystemExit(main())
