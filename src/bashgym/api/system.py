"""Health, this machine, devices, manifest."""

from __future__ import annotations

from fastapi import APIRouter, Response

from bashgym import __version__
from bashgym.api.http import Body, Space, reply
from bashgym.core.canonical import digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import fail

router = APIRouter(prefix="/api")
_NO_DEVICES = "remote devices are not in this version; runs execute on this machine"


@router.get("/health")
def health(space: Space) -> Response:
    """Answers while the process lives. `state_root_digest` tells two servers' state folders apart."""
    root = digest_json(str(space.settings.home))
    return reply({"status": "healthy", "timestamp": utc_now(), "version": __version__, "state_root_digest": root})


@router.get("/manifest")
def manifest() -> Response:
    """What this version can do."""
    from bashgym.methods.catalog import manifest as read

    return reply(read())


@router.get("/system/info")
def info(space: Space, refresh: bool = False) -> Response:
    """GPUs, memory, interpreter."""
    from bashgym.runs.sysinfo import info as facts

    return reply(facts(space.settings, refresh=refresh))


@router.get("/system/gpus")
def gpus(refresh: bool = False) -> Response:
    """The GPU list alone."""
    from bashgym.runs.hardware import gpus as cards

    return reply(cards(refresh=refresh))


@router.get("/system/recommendations")
def recommendations(space: Space, device_id: str | None = None) -> Response:
    """What this machine can train."""
    from bashgym.runs.estimate import recommendations as advice

    if device_id is not None:
        raise _unknown_device(device_id)
    return reply(advice(space.settings))


@router.get("/system/doctor")
def doctor(space: Space) -> Response:
    """The operator's checks."""
    from bashgym.runs.doctor import examine

    return reply(examine(space.settings))


@router.get("/ssh/preflight")
def ssh_preflight() -> Response:
    """Without a device the answer is that there is none."""
    names = ("python_version", "disk_free_gb", "host", "username", "hostname", "os_info", "cuda_version")
    return reply({"ok": False, "error": f"no device is registered: {_NO_DEVICES}", **dict.fromkeys(names), "gpus": []})


@router.get("/devices")
def devices() -> Response:
    """The registered devices: none."""
    return reply([])


@router.post("/devices")
def add_device(body: Body) -> Response:
    """Refused."""
    raise fail("target_unavailable", f"{str(body.get('name') or 'the device')[:80]} cannot be added: {_NO_DEVICES}")


@router.post("/devices/discover")
def discover_devices() -> Response:
    """Refused."""
    raise fail("target_unavailable", _NO_DEVICES)


@router.put("/devices/{device_id}")
@router.delete("/devices/{device_id}")
@router.post("/devices/{device_id}/set-default")
@router.post("/devices/{device_id}/preflight")
def on_device(device_id: str) -> Response:
    """There is no device to act on."""
    raise _unknown_device(device_id)


def _unknown_device(device_id: str) -> Exception:
    return fail("device_not_found", f"there is no device {device_id[:80]!r}: {_NO_DEVICES}", fields=["device_id"])
