"""A local model behind an endpoint for as long as it is needed: `serve-model`'s process, started and ended here."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from bashgym.core.errors import fail
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.inference.client import EndpointSpec
from bashgym.inference.served import ServeConfig

if TYPE_CHECKING:
    from bashgym.models.catalog import ModelRef

START_S = 300.0
GRACE_S = 10.0


@contextmanager
def served(model: ModelRef, settings: Settings) -> Iterator[EndpointSpec]:
    """The endpoint of a local model on a free port of loopback. `scoring_failed` with its last words if it does not come up."""
    config = ServeConfig(
        path=str(model.path),
        adapter_path=str(model.adapter_path) if model.adapter_path else None,
        name=model.name,
        port=0,
        announce=True,
        parent_pid=os.getpid(),
    )
    env = child_env(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
    argument = msgspec.json.encode(config).decode()
    process = subprocess.Popen(
        [settings.training_python, "-u", "-m", "bashgym.inference.server", argument],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    try:
        yield EndpointSpec(base_url=_address(process), provider="local", model=model.name)
    finally:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _address(process: subprocess.Popen[bytes]) -> str:
    """What the server announces; its stderr is drained all the while, so that it never blocks on a full pipe."""
    said: list[bytes] = []
    assert process.stdout is not None and process.stderr is not None  # noqa: S101 - both are PIPE
    errors = process.stderr

    def drain() -> None:
        for line in errors:
            said.append(line)
            del said[:-50]

    threading.Thread(target=drain, name="server-stderr", daemon=True).start()
    timer = threading.Timer(START_S, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            try:
                return str(json.loads(line)["url"])
            except (ValueError, KeyError, TypeError):
                continue
    finally:
        timer.cancel()
    process.wait()
    text = b"".join(said).decode("utf-8", "replace").strip()[-600:]
    raise fail("scoring_failed", f"the model did not come up: {text or f'status {process.returncode}'}")
