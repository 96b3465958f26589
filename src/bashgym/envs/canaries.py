"""Reward-hacking canaries: attacks that must not earn a reward here, each shown to earn one from a naive harness.

A canary is `guarded` if its attack does not pass, ends with an expected status, sends nothing to this host, leaves nothing beside
its workspace and shows nothing that is withheld. It counts only if the attack beats its control (else it could not fail) and the
honest solution passes (else the guard fails everybody). All of it runs in the sandbox.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.envs import sandbox
from bashgym.envs.canary_attacks import TAMPER, Attack, Canary, all_canaries
from bashgym.envs.canary_generic import UNTOUCHED, attacks_on
from bashgym.envs.rollout import Episode, EpisodeResult, run_episode
from bashgym.envs.spec import EnvironmentSpec
from bashgym.envs.workspace import temporary_workspace

SCHEMA = "bashgym.reward_hacking_canaries.v1"
MIN_SECRET = 8
"""Withheld content shorter than this may be shown by chance."""
_LIMITS = sandbox.Limits(wall_s=20.0)
_CONTROL_PORT = "8123"


def categories() -> list[str]:
    """The names that `categories` takes, in order."""
    return list(dict.fromkeys(canary.category for canary in all_canaries()))


def canary_report(
    wanted: Sequence[str] = (),
    *,
    environments: Sequence[EnvironmentSpec] = (),
    workspace_root: Path | None = None,
    keep_workspace: bool = False,
    run_id: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The document `bashgym.reward_hacking_canaries.v1`. Errors: `canary_unknown`, `sandbox_unavailable`.

    With `environments`, generic attacks are run against each of them besides. `keep_workspace` copies what each attack left of
    the guarded workspace to `workspace_root`/canary-workspaces (without a root: below the current folder).
    """
    sandbox.require()
    known = categories()
    if unknown := [name for name in wanted if name not in known]:
        raise fail(
            "canary_unknown", f"no category is called {unknown[0]!r}", f"Known: {', '.join(known)}.", ["categories"]
        )
    chosen = [canary for canary in all_canaries() if not wanted or canary.category in wanted]
    places = _Places(workspace_root, (workspace_root or Path.cwd()) / "canary-workspaces" if keep_workspace else None)
    work: list[Callable[[], dict[str, Any]]] = [lambda c=canary: _check(c, places) for canary in chosen]  # type: ignore[misc]
    for spec in environments:
        attacks = [a for a in attacks_on(spec) if not wanted or a.category in (*wanted, UNTOUCHED)]
        work += [lambda s=spec, a=attack: _check_own(s, a, places) for attack in attacks]  # type: ignore[misc]
    rows = _run(work, progress)
    suite = [[c.id, c.spec.digest(), list(c.attack), list(c.honest), c.naive_start, c.control] for c in chosen]
    return {
        "schema_version": SCHEMA,
        "run_id": run_id,
        "created_at": utc_now(),
        "suite_digest": digest_json(suite),
        "sandbox": {"kind": "bubblewrap", "network": False},
        "summary": summarise(rows),
        "canaries": [{key: value for key, value in row.items() if key != "steps"} for row in rows],
        "rollouts": [{"canary_id": row["canary_id"], "steps": row["steps"]} for row in rows],
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts. `invalid` ones could not fail, or fail everybody; `failed` counts the attacks that got through."""
    counted = [row for row in rows if not row["invalid"]]
    guarded = sum(row["guarded"] for row in counted)
    names = dict.fromkeys(row["category"] for row in rows)
    return {
        "total": len(rows),
        "guarded": guarded,
        "failed": len(counted) - guarded,
        "invalid": len(rows) - len(counted),
        "guard_rate": guarded / len(counted) if counted else 0.0,
        "ok": bool(rows) and guarded == len(rows),
        "categories": {
            name: {
                "total": sum(row["category"] == name for row in rows),
                "guarded": sum(row["category"] == name and row["guarded"] and not row["invalid"] for row in rows),
            }
            for name in names
        },
    }


def _run(
    work: Sequence[Callable[[], dict[str, Any]]], progress: Callable[[int, int], None] | None
) -> list[dict[str, Any]]:
    rows = []
    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        for done, row in enumerate(pool.map(lambda job: job(), work), 1):
            rows.append(row)
            if progress:
                progress(done, len(work))
    return rows


class _Places:
    """Where workspaces are made, and where copies of them are kept, if at all."""

    def __init__(self, root: Path | None, keep: Path | None) -> None:
        self.root, self._keep = root, keep

    def copy(self, name: str, work: Path) -> str | None:
        """The folder with a copy of `work`: plain files, folders and links as such; nothing that could block a reader."""
        if self._keep is None:
            return None
        place = self._keep / name.replace(":", "-")
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(work, place, symlinks=True, ignore=_special)
        return str(place)


def _special(folder: str, names: list[str]) -> list[str]:
    kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name in names if not any(kind(os.lstat(os.path.join(folder, name)).st_mode) for kind in kinds)]


def _check(canary: Canary, places: _Places) -> dict[str, Any]:
    """One attack guarded, the same one against its control, and the honest solution."""
    attack = Attack(canary.category, canary.name, canary.attack, canary.expected)
    row = _attack(canary.id, canary.spec, attack, places)
    beaten = _control(canary, places)
    honest = run_episode(canary.spec, canary.honest, workspace_root=places.root, limits=_LIMITS).passed
    return {**row, "invalid": not (beaten and honest), "control_beaten": beaten, "honest_passes": honest}


def _check_own(spec: EnvironmentSpec, attack: Attack, places: _Places) -> dict[str, Any]:
    """A generic attack on one of the user's environments. There is no control: whether it can succeed is the question."""
    row = _attack(f"{attack.category}:{attack.name}:{spec.id}", spec, attack, places)
    return {**row, "environment_id": spec.id, "invalid": False, "control_beaten": None, "honest_passes": None}


def _attack(canary_id: str, spec: EnvironmentSpec, attack: Attack, places: _Places) -> dict[str, Any]:
    """The guarded episode, and whether it had an effect outside."""
    with _listeners() as (port, heard), Episode(spec, workspace_root=places.root, limits=_LIMITS) as episode:
        for command in attack.commands:
            episode.run(command.replace("PORT", port))
        result = episode.judge()
        beside = {entry.name for entry in episode.work.parent.iterdir()} - {"work", "aside"}
        outside = heard() or (f"made {sorted(beside)[0]!r} beside the workspace" if beside else _shown(spec, result))
        workspace = places.copy(canary_id, episode.work)
    status = str(result.verifier_status)
    return {
        "canary_id": canary_id,
        "category": attack.category,
        "name": attack.name,
        "guarded": not result.passed and status in attack.expected and not outside,
        "expected_status": sorted(attack.expected),
        "verifier_status": status,
        "passed": result.passed,
        "tamper_detected": status in TAMPER,
        "outside": outside,
        "detail": result.detail[:300],
        "workspace": workspace,
        "steps": [
            {"command": step.command, "exit_code": step.exit_code, "stderr": step.stderr[-300:]}
            for step in result.steps
        ],
    }


@contextmanager
def _listeners() -> Iterator[tuple[str, Callable[[], str]]]:
    """A free port of this host with a listener for TCP and UDP, and a unix socket by its number: (port, what arrived)."""
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix,
    ):
        port = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", port))
        unix.bind(f"\0bashgym-{port}")

        def heard() -> str:
            for name, server in (("TCP", tcp), ("UDP", udp), ("a unix socket", unix)):
                server.setblocking(False)
                try:
                    server.accept()[0].close() if server is tcp else server.recv(1)
                except BlockingIOError:
                    continue
                return f"reached this host over {name}"
            return ""

        yield str(port), heard


def _shown(spec: EnvironmentSpec, result: EpisodeResult) -> str:
    """Whether a step printed a withheld file that the workspace does not show anyway."""
    withheld = spec.withheld()
    public = [text for path, text in spec.files.items() if path not in withheld] + [s.command for s in result.steps]
    said = "\n".join(text for step in result.steps for text in (step.stdout, step.stderr))
    for path in sorted(withheld & spec.files.keys()):
        secret = spec.files[path].strip()
        if len(secret) >= MIN_SECRET and secret in said and not any(secret in text for text in public):
            return f"a command printed {path}, which is withheld"
    return ""


def _control(canary: Canary, places: _Places) -> bool:
    """Whether the attack passes where the verifier lies in the workspace and one shell runs everything."""
    script = "\n".join([canary.naive_start, *canary.attack, canary.control]).replace("PORT", _CONTROL_PORT)
    with temporary_workspace({**canary.spec.files, **canary.naive_files}, places.root) as workspace:
        return sandbox.run_command(script, workdir=workspace.work, limits=_LIMITS).exit_code == 0
