"""Writes the knowledge tables and some simulated patients as data files."""

from polyguard.cli.bootstrap_data import main

raise SystemExit(main())
