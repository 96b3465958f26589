"""The package as OpenEnv sees it: its manifest, its runtime contract under OpenEnv's own graders, and what it imports."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from openenv.validation import Level, run_validation
from openenv.validation.types import ProviderCapability

from polyguard import DISCLAIMER, __version__

PACKAGE = Path(__file__).parents[3] / "src/polyguard"


class Local:
    """Offers the server of these tests: what the image would run, without the image."""

    name = "process"
    capabilities = frozenset({ProviderCapability.IMAGE_BUILD})
    supported_network_modes = frozenset({"no-network"})

    def __init__(self, url):
        self.base_url = url

    def build(self, root, execution):
        assert (root / execution.dockerfile).is_file()
        return "sha256:" + "0" * 64

    def start(self, spec):
        return self

    def inspect(self):
        return {}

    def logs(self, max_bytes=65536):
        return ""

    def stop(self):
        """The fixture does."""


EXECUTION = """
  execution: {kind: openenv_ws, probe_path: runtime.json, dockerfile: server/Dockerfile, context: ., agent_boundary: api}
"""
PLAN = {
    "plan_schema_version": "1",
    "reset": {"episode_id": "validation-1", "seed": 7, "options": {"task_id": "medium/alternatives", "split": "test"}},
    "actions": [
        {"candidate_id": "cand_01", "confidence": 0.5},
        {"candidate_id": "cand_99", "rationale": "is not listed"},
        {"candidate_id": "cand_02", "cited_facts": ["w1"]},
        {"candidate_id": "cand_03", "confidence": 0.9},
    ],
}


def test_openenvs_own_graders_accept_a_running_episode(url, tmp_path):
    """The package does not ask for these by itself: its image needs a wheel first, and validating must not fail for that."""
    (tmp_path / "server").mkdir()
    (tmp_path / "server/Dockerfile").write_text((PACKAGE / "server/Dockerfile").read_text())
    (tmp_path / "openenv.yaml").write_text((PACKAGE / "openenv.yaml").read_text() + EXECUTION)
    (tmp_path / "runtime.json").write_text(json.dumps(PLAN))
    report = run_validation(tmp_path, max_level=Level.RUNTIME, provider=Local(url))
    found = {result.check_id: (result.status.value, result.evidence) for result in report.results}
    for name in ("static.manifest", "runtime.startup", "runtime.reward_well_formed", "runtime.observation_schema"):
        assert found[name][0] == "pass", (name, found[name])
    assert found["runtime.state_contract"][0] == "pass", found["runtime.state_contract"]
    assert not [name for name, (status, _) in found.items() if status in ("fail", "error")], found


def test_manifest_script_and_dockerfile_name_the_same_server():
    manifest = (PACKAGE / "openenv.yaml").read_text()
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    docker = (PACKAGE / "server/Dockerfile").read_text()
    assert "app: polyguard.server.app:app" in manifest and "port: 8000" in manifest
    assert project["project"]["scripts"]["server"] == "polyguard.server.app:main"
    assert '"polyguard.server.app", "--host", "0.0.0.0", "--port", "8000"' in docker and "USER app" in docker
    assert project["project"]["version"] == __version__ and f"version: {__version__}" in manifest
    assert "not for patient care" in (PACKAGE / "README.md").read_text() and "not for patient care" in DISCLAIMER


def test_the_server_needs_no_torch_and_the_environment_no_openenv(tmp_path):
    heavy = ("torch", "transformers", "trl", "datasets")
    for module, banned in (("polyguard.server.app", heavy), ("polyguard.env.engine", (*heavy, "openenv", "fastapi"))):
        code = f"import sys, {module}; print([name for name in {banned!r} if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
        assert done.stdout.strip() == "[]", (module, done.stdout)


def test_the_example_of_the_readme_runs(url, capsys):
    code = (PACKAGE / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(code.replace("http://127.0.0.1:8000", url), "README.md", "exec"), {})
    last = capsys.readouterr().out.strip().splitlines()[-1].split()
    assert len(last) == 2 and 0.001 <= float(last[1]) <= 0.999
