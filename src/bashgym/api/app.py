"""Builds the app: routers, error envelope, guard."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from bashgym import __version__
from bashgym.api import (
    artifacts,
    cascade,
    eval_canaries,
    eval_gates,
    eval_heldout,
    eval_replay,
    eval_rollouts,
    evals,
    ledger,
    system,
    training,
)
from bashgym.api.guard import Guard, Policy
from bashgym.api.http import known_query, refusal
from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.settings import Settings
from bashgym.workspace import Workspace


def create_app(workspace: Workspace, policy: Policy | None = None) -> Guard:
    """The API of a workspace as an ASGI app. Without a policy: loopback names, no token."""
    return Guard(build_app(workspace), policy or Policy(), reporter(workspace.settings))


def build_app(workspace: Workspace) -> FastAPI:
    """The routes without their guard. Never serve this as it is."""
    app = FastAPI(
        title="BashGym",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=_lifespan,
        dependencies=[Depends(known_query)],
        redirect_slashes=False,
    )
    app.state.workspace = workspace
    # Fixed paths before `/api/training/{run_id}`.
    for router in (
        system.router,
        artifacts.router,
        training.router,
        evals.router,
        eval_gates.router,
        eval_canaries.router,
        eval_rollouts.router,
        eval_heldout.router,
        eval_replay.router,
        cascade.router,
        ledger.router,
    ):
        app.include_router(router)
    _add_errors(app, reporter(workspace.settings))
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """At the start of a server: runs that should be live get a supervisor again, or are closed."""
    await run_in_threadpool(app.state.workspace.runs.recover)
    yield


def reporter(settings: Settings) -> Callable[[BaseException], str]:
    """A function that appends an unexpected error to `BASHGYM_DIR/logs/api.jsonl`, once, and returns its id."""

    def report(error: BaseException) -> str:
        import traceback

        known = getattr(error, "bashgym_report", None)
        if isinstance(known, str):
            return known
        error_id = f"err_{secrets.token_hex(6)}"
        error.bashgym_report = error_id  # type: ignore[attr-defined]
        line = {"id": error_id, "ts": utc_now(), "traceback": "".join(traceback.format_exception(error))}
        try:
            folder = settings.home / "logs"
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "api.jsonl").open("a", encoding="utf-8", errors="backslashreplace") as log:
                log.write(json.dumps(line) + "\n")
        except OSError:
            return f"{error_id} (the log could not be written)"
        return error_id

    return report


def _add_errors(app: FastAPI, report: Callable[[BaseException], str]) -> None:
    def typed(_: Request, error: Exception) -> Response:
        return refusal(error if isinstance(error, BashGymError) else fail("internal", str(error)))

    def invalid(_: Request, error: Exception) -> Response:
        problems = error.errors() if isinstance(error, RequestValidationError) else []
        fields = [str(problem["loc"][-1]) for problem in problems]
        said = "; ".join(f"{name}: {problem['msg'].lower()}" for name, problem in zip(fields, problems, strict=True))
        return refusal(fail("invalid_field", said or str(error), fields=fields))

    def http(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404:
            where = f"{request.method} {request.url.path}"[:200]
            return refusal(fail("route_not_found", f"there is no route {where}", "GET /api/manifest lists the routes."))
        if status == 405:
            return refusal(fail("method_refused", f"{request.url.path[:200]} does not take {request.method}"))
        return refusal(fail("body_unreadable", str(getattr(error, "detail", error))))

    def unexpected(_: Request, error: Exception) -> Response:
        return refusal(fail("internal", "a fault of ours", f"The server's log has the details under {report(error)}."))

    app.add_exception_handler(BashGymError, typed)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)
