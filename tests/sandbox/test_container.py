"""Containers: how an engine is called, and what happens without one. The engine is a recorder; real ones are not in CI."""

import json
import sys

import pytest

from bashgym.core.errors import BashGymError
from bashgym.envs.container import Container, engine, wants_container
from bashgym.envs.rollout import Episode, check_runnable, run_episode
from bashgym.envs.sandbox import Limits
from bashgym.envs.spec import EnvironmentSpec

RECORDER = """#!{python}
import json, os, pathlib, re, sys
args = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(args) + "\\n")
if args[0] == "image":
    print("/app")
elif args[0] == "build":
    print("sha256:built")
elif args[0] == "create":
    print("made")
elif args[0] == "cp":
    pathlib.Path(args[2], "from_image.txt").write_text("image")
elif args[0] == "run":
    work = next(a.split("=", 1)[1].split(":")[0] for a in args if a.startswith("--volume=") and a.endswith(":/work"))
    command = re.sub("/(app|work)(?=/| |$)", work, args[-1])
    os.chdir(work)
    os.execvp("bash", ["bash", "-c", command])
"""


@pytest.fixture()
def podman(tmp_path, monkeypatch):
    log, program = tmp_path / "log", tmp_path / "podman"
    program.write_text(RECORDER.format(python=sys.executable, log=str(log)))
    program.chmod(0o755)
    monkeypatch.setenv("BASHGYM_CONTAINER", f"{program} --runtime runc")
    monkeypatch.setattr("bashgym.envs.container._engine", _without_runtime)
    return lambda: [json.loads(line) for line in log.read_text().splitlines()]


def _without_runtime(argv, rest, timeout=60.0):
    import subprocess

    return subprocess.run([argv[0], *rest], capture_output=True, check=False, timeout=timeout)


def spec(**build):
    verifier = {"command": "grep -qx hello /app/out.txt"}
    body = {"id": "c", "instruction": "x", "verifier": verifier, "files": {"given.txt": "given"}, "build": build}
    return EnvironmentSpec.from_dict(body)


def test_what_needs_a_container():
    assert not wants_container(spec())
    assert wants_container(spec(base_image="debian")) and wants_container(spec(context_dir="/x"))
    assert wants_container(spec(network_disabled=False)) and wants_container(spec(compose_file="c.yaml"))


def test_without_an_engine_it_is_refused_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BASHGYM_CONTAINER", raising=False)
    for call in (engine, lambda: run_episode(spec(base_image="debian"), ["true"])):
        with pytest.raises(BashGymError) as caught:
            call()
        assert caught.value.code == "container_unavailable"
    monkeypatch.setenv("BASHGYM_CONTAINER", "no-such-engine")
    with pytest.raises(BashGymError, match="no-such-engine"):
        engine()


def test_compose_files_and_missing_dockerfiles_are_refused_by_name(podman, tmp_path):
    for build, code in (
        ({"compose_file": "compose.yaml"}, "container_unavailable"),
        ({"context_dir": str(tmp_path)}, "environment_invalid"),
    ):
        with pytest.raises(BashGymError) as caught:
            Container.of(spec(**build))
        assert caught.value.code == code


def test_commands_run_without_network_root_or_capabilities_and_with_limits(podman, tmp_path):
    container = Container(("podman",), "img", "/app", network=False)
    options = container._options(tmp_path, Limits(), [(tmp_path, "/verifier")], ["/logs"])
    for needed in ("--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--pids-limit=64"):
        assert needed in options
    assert "--ulimit=cpu=10:10" in options, "the CPU time of a process is bounded, as in bubblewrap"
    assert f"--memory={512 << 20}" in options and f"--volume={tmp_path}:/verifier:ro" in options
    assert not any(option.startswith(("--user=0:", "--privileged")) for option in options)
    assert f"--volume={tmp_path}:/app" in options and f"--volume={tmp_path}:/work" in options
    assert any(option.startswith("--mount=type=tmpfs,destination=/logs") for option in options)
    with_net = Container(("podman",), "img", "/app", network=True)._options(tmp_path, Limits(), [], [])
    assert "--network=bridge" in with_net


def test_an_episode_starts_from_the_image_and_the_files_and_is_judged_in_a_container(podman, tmp_path, monkeypatch):
    from bashgym.envs import container

    monkeypatch.setattr(container, "engine", lambda: [container.os.environ["BASHGYM_CONTAINER"].split()[0]])
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    with Episode(spec(context_dir=str(tmp_path))) as episode:
        shown = episode.run("cat from_image.txt given.txt")
        assert shown.stdout == "imagegiven"
        assert episode.run("exit 3").exit_code == 3
        slow = Episode(spec(base_image="img"), limits=Limits(wall_s=0.3))
        assert str(slow.run("sleep 20").stopped) == "time"
        flood = Episode(spec(base_image="img"), limits=Limits(wall_s=10, flood_bytes=100_000, output_bytes=1000))
        step = flood.run("yes")
        assert str(step.stopped) == "output" and len(step.stdout) <= 1000
        episode.run("echo hello > out.txt")
        assert episode.judge().passed
    calls = podman()
    build = next(call for call in calls if call[0] == "build")
    assert "--network=none" in build
    assert any(call[:1] == ["rm"] for call in calls), "what was made is removed"
    images = [call[call.index("bash") - 1] for call in calls if call[0] == "run"]
    assert "sha256:built" in images and "img" in images


def test_an_image_without_a_working_folder_makes_no_container_to_copy_from(podman, tmp_path):
    Container(("nothing-is-called",), "img", "/work", False, own_folder=False).fill(work := tmp_path / "work")
    assert not work.exists()


def test_what_no_engine_can_mend_is_refused_when_the_request_is_checked(podman, tmp_path):
    for build, code in (
        ({"compose_file": "compose.yaml"}, "container_unavailable"),
        ({"context_dir": str(tmp_path)}, "environment_invalid"),
    ):
        with pytest.raises(BashGymError) as caught:
            check_runnable(spec(**build))
        assert caught.value.code == code
    assert not (tmp_path / "log").exists(), "no engine was asked"


def test_a_command_that_no_argv_can_hold_is_refused(tmp_path):
    with pytest.raises(BashGymError) as caught:
        Container(("podman",), "img", "/app", False).run("a\0b", workdir=tmp_path)
    assert caught.value.code == "invalid_field"


def test_what_is_frozen_is_so_by_each_name_of_the_workspace(tmp_path):
    frozen = [(tmp_path / "tests", "/work/tests"), (tmp_path / "aside", "/verifier")]
    options = Container(("podman",), "image", "/app", False)._options(tmp_path, Limits(), frozen, [])
    assert {o.split(":", 1)[1] for o in options if o.endswith(":ro")} == {
        *("/work/tests:ro", "/app/tests:ro", "/verifier:ro")
    }
