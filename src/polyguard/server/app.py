"""The server: `python -m polyguard.server.app`, or `uvicorn polyguard.server.app:app`.

It listens on this machine only unless told otherwise, and knows no users: put nothing but a trusted network, or a proxy that
knows them, in front of it. What it bounds: how many sessions there are, and how long a message is.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from fastapi import Request
from fastapi.responses import JSONResponse
from openenv.core.env_server.http_server import create_app

from bashgym.core.errors import BashGymError
from polyguard import DISCLAIMER
from polyguard.models import PolyGuardAction, PolyGuardObservation, PolyGuardState
from polyguard.server.polyguard_environment import PolyGuardEnvironment

MAX_SESSIONS = "POLYGUARD_MAX_SESSIONS"
"""Environment variable: how many sessions there may be (64)."""
MAX_MESSAGE = 64 * 1024

app = create_app(
    PolyGuardEnvironment,
    PolyGuardAction,
    PolyGuardObservation,
    env_name="polyguard",
    max_concurrent_envs=int(os.environ.get(MAX_SESSIONS, "64")),
    state_cls=PolyGuardState,
)
app.title = "PolyGuard"
app.description = f"{DISCLAIMER}\n\n{app.description}"


async def _refused(_: Request, error: Exception) -> JSONResponse:
    """What was asked for is not there, or not allowed."""
    if not isinstance(error, BashGymError):
        raise error
    return JSONResponse({"detail": error.detail()}, status_code=error.http_status)


app.add_exception_handler(BashGymError, _refused)


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until it is told to stop."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="server", description=f"PolyGuard as an OpenEnv server. {DISCLAIMER}")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all (no authentication)")
    parser.add_argument("--port", type=int, default=8000, help="0 for any free one")
    options = parser.parse_args(argv)
    uvicorn.run(app, host=options.host, port=options.port, ws_max_size=MAX_MESSAGE, log_level="warning")


if __name__ == "__main__":
    main()
