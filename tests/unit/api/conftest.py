"""A real app over a fresh workspace, driven through its ASGI interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bashgym.api.app import create_app
from bashgym.api.guard import Policy
from bashgym.core.settings import Settings
from bashgym.store.run_dir import RunDir, RunState, RunStatus, create_run_dir
from bashgym.workspace import Workspace


@dataclass
class Api:
    """Sends one request and returns (status, decoded body, headers)."""

    app: Any

    def __call__(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None, **kw: Any
    ) -> tuple[int, Any, httpx.Headers]:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                if body is not None:
                    kw["json"] = body
                return await http.request(method, path, headers=headers, **kw)

        reply = asyncio.run(send())
        return reply.status_code, json.loads(reply.content), reply.headers


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return Settings.from_env({"BASHGYM_DIR": str(tmp_path / "home")}, work)


@pytest.fixture
def make_api(settings: Settings) -> Callable[..., Api]:
    def make(policy: Policy | None = None) -> Api:
        return Api(create_app(Workspace(settings), policy))

    return make


@pytest.fixture
def api(make_api: Callable[..., Api]) -> Api:
    return make_api()


@pytest.fixture
def make_run(settings: Settings) -> Callable[..., RunDir]:
    """A run directory in a given state, as the service would have left it."""

    def make(run_id: str, status: RunStatus = RunStatus.COMPLETED) -> RunDir:
        settings.models_dir.mkdir(parents=True, exist_ok=True)
        run = create_run_dir(settings.models_dir, run_id)
        run.write_json("request.json", {"strategy": "sft", "base_model": "bashgym/tiny-qwen2", "run_id": run_id})
        run.write_state(RunState(run_id=run_id, strategy="sft", status=status))
        return run

    return make
