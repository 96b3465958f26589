"""The acceptance gate: see `polyguard.cli.acceptance_gate`."""

from polyguard.cli.acceptance_gate import main

raise SystemExit(main())
