"""Checks the knowledge tables."""

from polyguard.cli.validate_knowledge import main

raise SystemExit(main())
