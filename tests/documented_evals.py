"""`python tests/documented_evals.py SCRIPT --venv VENV`: the group `evals` of the documented commands, with its oracle mended.

The script's oracle keeps its answer in a class attribute `command`, which `http.server` overwrites on every request with the
HTTP method, so that the oracle asks for the command `POST`. Here it gets its answer back; nothing else differs.
"""

import importlib.util
import sys
from pathlib import Path


def main() -> int:
    """The script's own exit status."""
    path = Path(sys.argv[1]).resolve()
    spec = importlib.util.spec_from_file_location("documented_commands", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    answer, respond = script.Oracle.command, script.Oracle.do_POST

    def do_POST(handler):
        handler.command = answer
        respond(handler)

    script.Oracle.do_POST = do_POST
    sys.argv = [str(path), *sys.argv[2:], "--group", "evals"]
    return script.main()


if __name__ == "__main__":
    sys.exit(main())
