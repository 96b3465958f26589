"""The examples that README links to run as they stand, on the tiny model."""

import json
from pathlib import Path

import pytest

from bashgym.methods import registry

from .conftest import TINY, wait_end

pytestmark = pytest.mark.train
EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = {
    "sft": "shell_sft.jsonl",
    "dpo": "shell_dpo.jsonl",
    "grpo": "grpo.jsonl",
    "rlvr": "rlvr.jsonl",
    "distillation": "shell_distillation.jsonl",
    "dppo": "dppo.jsonl",
    "reward_model": "reward_model.jsonl",
}


def _start(workspace, strategy, data, config, **changes):
    request = json.loads((EXAMPLES / config).read_text())
    request |= {"strategy": strategy, "base_model": TINY, "dataset_path": str(data), "torch_threads": 1, **changes}
    run_id = workspace.runs.start(request)["run_id"]
    final = wait_end(workspace, run_id)
    assert final["status"] == "completed", final
    return final


def test_each_strategy_has_a_runnable_example(workspace, tmp_path):
    from bashgym.data.sessions.build import build

    records = tmp_path / "records.jsonl"
    assert build(EXAMPLES / "sessions", records)["record_count"] >= 4
    _start(workspace, "sft", EXAMPLES / "shell_sft.jsonl", "distillation_teacher.json", max_steps=2)
    for strategy in registry.direct_names():
        data = records if strategy == "session_distillation" else EXAMPLES / DATA[strategy]
        final = _start(workspace, strategy, data, f"{strategy}.json", max_steps=2)
        assert final["progress"]["step"] == 2
