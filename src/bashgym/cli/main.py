"""The entry point and the one error boundary: whatever happens becomes a message and an exit status, never a traceback.

Exit statuses: 0 ok, 1 refused or failed, 2 usage or a validator that said no, 130 interrupted; `ledger` has 3 to 8.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bashgym.core.errors import BashGymError, fail

if TYPE_CHECKING:
    from bashgym.cli.lazy import Session


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status. Imports little until Ctrl-C can be answered."""
    try:
        return _guarded(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        os.write(2, b"error interrupted: stopped by the user\n")
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _guarded(args: list[str]) -> int:
    from bashgym.cli.lazy import Session
    from bashgym.cli.output import Reply, emit

    session = Session(json="--json" in args)
    try:
        reply = _run(args, session)
        if isinstance(reply, Reply):
            emit(reply, session.json)
            sys.stdout.flush()
            return reply.exit_code
        return reply if isinstance(reply, int) else 0
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the boundary of the program
        return _refuse(as_error(error), session)


def _run(args: list[str], session: Session) -> object:
    import typer

    from bashgym.cli.lazy import LazyGroup
    from bashgym.cli.registry import ROOT

    root = LazyGroup("bashgym", ROOT)
    try:
        with root.make_context("bashgym", args, obj=session) as ctx:
            return root.invoke(ctx)
    except typer.Exit as stop:
        return stop.exit_code


def as_error(error: BaseException) -> BashGymError:
    """Any exception as a typed error; what is not ours to explain goes to a log file and becomes `internal`."""
    from typer import Abort

    if isinstance(error, BashGymError):
        return error
    if isinstance(error, KeyboardInterrupt | Abort):
        return fail("interrupted", "stopped by the user")
    if hasattr(error, "format_message"):  # Typer's and Click's usage errors; their classes move between versions.
        return _usage(error)
    return _internal(error)


def _usage(error: object) -> BashGymError:
    message = str(getattr(error, "message", "") or error).strip()
    near = getattr(error, "possibilities", None)
    ctx = getattr(error, "ctx", None)
    hint = f"Did you mean {sorted(near)[0]}? " if near else ""
    if not near and (option := getattr(error, "option_name", None)) and ctx is not None:
        hint = _nearest(str(option), [name for p in ctx.command.params for name in p.opts])
    hint += f"`{ctx.command_path} --help` shows what it takes." if ctx is not None else ""
    param = getattr(error, "param", None)
    fields = [param.opts[0]] if param is not None and getattr(param, "opts", None) else []
    if fields and fields[0] not in message:
        message = f"{fields[0]}: {message}"
    return fail("usage", message[:1].lower() + message[1:], hint, fields)


def _nearest(option: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(option, known, n=1, cutoff=0.5)
    return f"Did you mean {near[0]}? " if near else ""


def _internal(error: BaseException) -> BashGymError:
    where = log_traceback(error)
    if isinstance(error, OSError) and error.errno in (28, 122):
        return fail("disk_full", f"no space left: {error.filename or error.strerror}", "Free disk space and try again.")
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("bashgym"):
        return fail("missing_extra", f"the package {error.name} is not installed", "pip install 'bashgym[train]'")
    return fail(
        "internal", f"{type(error).__name__}: {str(error)[:300]}", f"The details are in {where}." if where else ""
    )


def log_traceback(error: BaseException) -> str:
    """Writes the traceback to a file under `BASHGYM_DIR/logs` and returns its path; empty if that cannot be written."""
    import traceback

    from bashgym.core.clock import utc_now
    from bashgym.core.settings import Settings

    try:
        folder = Settings.from_env().home / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"error-{utc_now().replace(':', '')}-{os.getpid()}.log"
        path.write_text("".join(traceback.format_exception(error)), "utf-8", "backslashreplace")
    except OSError:
        return ""
    return str(path)


def _refuse(error: BashGymError, session: Session) -> int:
    """Tells an error: always on stderr, and with `--json` also as the document on stdout."""
    if session.json:
        from bashgym.cli.output import print_json

        print_json({"detail": error.detail()})
    show_error(error)
    if error.code == "interrupted":
        return 130
    return error.ledger_exit if session.ledger else error.exit_status


def show_error(error: BashGymError) -> None:
    """The message for people, coloured on a terminal."""
    from bashgym.cli.output import safe

    red, bold, off = (
        ("\x1b[31m", "\x1b[1m", "\x1b[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("",) * 3
    )
    print(f"{red}error{off} {bold}{error.code}{off}: {safe(error.message)}", file=sys.stderr)
    if error.fields:
        print(f"  fields: {safe(', '.join(map(str, error.fields)))}", file=sys.stderr)
    if error.hint:
        print(f"  {safe(error.hint)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
