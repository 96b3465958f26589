"""The operator's check: is everything here that a run needs? Writes only what a first run would write anyway."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.core.files import writable_dir
from bashgym.core.settings import DEFAULT_API_BASE, Settings
from bashgym.runs.estimate import nearest_existing
from bashgym.runs.sysinfo import GIB, interpreter

TRAINER_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
_MIN_DISK_GIB, _MIN_MEMORY_GIB = 2.0, 2.0


@dataclass(frozen=True)
class Check:
    """One answer."""

    name: str
    ok: bool
    detail: str
    hint: str = ""
    blocking: bool = True
    """False: something is missing that only some commands need."""


def examine(settings: Settings) -> dict[str, Any]:
    """{schema_version, ok, checks: [{name, ok, detail, hint, blocking}]}; ok means that no blocking check failed."""
    checks = [_guarded(name, test, settings) for name, test in _CHECKS.items()]
    return {
        "schema_version": "bashgym.doctor.v1",
        "ok": all(check.ok for check in checks if check.blocking),
        "checks": [asdict(check) for check in checks],
    }


def _guarded(name: str, test: Callable[[Settings], Check], settings: Settings) -> Check:
    try:
        return test(settings)
    except (BashGymError, OSError, ImportError) as error:
        hint = error.hint if isinstance(error, BashGymError) else ""
        return Check(name, False, str(error), hint)


def _python(_: Settings) -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", sys.version_info >= (3, 11), f"{version} at {sys.executable}", "Use Python 3.11 or newer.")


def _trainer(settings: Settings) -> Check:
    facts = interpreter(settings)
    if not facts["python_available"]:
        hint = "Set BASHGYM_TRAINING_PYTHON to an interpreter with bashgym[train]."
        return Check("trainer packages", False, str(facts["python_error"]), hint)
    missing = [name for name in TRAINER_PACKAGES if name not in facts["packages"]]
    have = ", ".join(f"{name} {facts['packages'][name]}" for name in TRAINER_PACKAGES if name in facts["packages"])
    detail = f"missing {', '.join(missing)}" if missing else f"{have} in {facts['training_python']}"
    return Check("trainer packages", not missing, detail, "pip install 'bashgym[train]'")


def _sandbox(_: Settings) -> Check:
    from bashgym.envs import sandbox

    try:
        sandbox.require()
    except BashGymError as error:
        return Check(
            "sandbox",
            False,
            f"{error.message}: evaluations that execute commands are refused",
            error.hint,
            blocking=False,
        )
    return Check("sandbox", True, "bubblewrap runs commands without network, in a private file system")


def _database(settings: Settings) -> Check:
    from bashgym.ledger.service import Ledger

    health = Ledger(settings).health()
    detail = f"{health['database']}, schema {health['migration_versions'][-1]}, {health['status']}"
    return Check("database", health["status"] == "healthy", detail, "`bashgym runs reindex` rebuilds the index.")


def _models_dir(settings: Settings) -> Check:
    existing = nearest_existing(settings.models_dir)
    writable_dir(existing)
    return Check("models folder", True, f"{settings.models_dir} can be written")


def _disk(settings: Settings) -> Check:
    free = shutil.disk_usage(nearest_existing(settings.models_dir)).free / GIB
    return Check("disk", free >= _MIN_DISK_GIB, f"{free:.1f} GiB free", f"Free at least {_MIN_DISK_GIB:.0f} GiB.")


def _memory(_: Settings) -> Check:
    import psutil

    free = psutil.virtual_memory().available / GIB
    hint = f"Training even a small model needs about {_MIN_MEMORY_GIB:.0f} GiB."
    return Check("memory", free >= _MIN_MEMORY_GIB, f"{free:.1f} GiB available", hint, blocking=False)


def _tiny_model(settings: Settings) -> Check:
    from bashgym.models.catalog import resolve

    model = resolve("bashgym/tiny-qwen2", settings)
    return Check("built-in model", True, f"{model.name}, {model.n_parameters} parameters, digest {model.digest[:12]}")


def _api(settings: Settings) -> Check:
    """The API that `bashgym api` would talk to."""
    from urllib.parse import urlsplit

    from bashgym.core.apibase import check_base

    stated = settings.api_base
    parts = urlsplit(check_base(stated or DEFAULT_API_BASE))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((str(parts.hostname), port), timeout=1.0):
            return Check("api", True, f"{parts.geturl()} accepts connections", blocking=False)
    except OSError as error:
        if not stated:
            return Check("api", True, "no server runs; requests are served in-process", blocking=False)
        hint = "Start the server, or unset BASHGYM_API_BASE to be served in-process."
        return Check("api", False, f"{stated} does not answer: {error}", hint, blocking=False)


_CHECKS: dict[str, Callable[[Settings], Check]] = {
    "python": _python,
    "trainer packages": _trainer,
    "sandbox": _sandbox,
    "database": _database,
    "models folder": _models_dir,
    "disk": _disk,
    "memory": _memory,
    "built-in model": _tiny_model,
    "api": _api,
}
