"""`python -m bashgym.methods [--check] [PATH]`: write docs/methods.md, or say whether it is up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bashgym.core.files import atomic_write_text
from bashgym.methods.catalog import methods_markdown
from bashgym.methods.docs import DOCS_PATH


def main(argv: list[str] | None = None) -> int:
    """0: written or up to date; 1: `--check` found a difference."""
    parser = argparse.ArgumentParser(prog="python -m bashgym.methods", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file differs")
    parser.add_argument("path", nargs="?", type=Path, default=Path(DOCS_PATH))
    options = parser.parse_args(argv)
    text = methods_markdown()
    if not options.check:
        atomic_write_text(options.path, text)
        return 0
    same = options.path.is_file() and options.path.read_text(encoding="utf-8") == text
    if not same:
        sys.stderr.write(f"{options.path} is not what the registry says: run python -m bashgym.methods\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
