import pytest

from bashgym.runs import estimate

from .conftest import TINY

pytestmark = pytest.mark.train


def test_probe_steps_calibrate_memory_and_time(workspace, body):
    measured = estimate.probe(TINY, workspace.settings, rows=4, length=128)
    assert measured["tokens_per_second"] > 0 and 0.1 < measured["peak_memory_gb"] < 8
    prepared = workspace.runs.check({**body, "use_lora": False, "batch_size": 4, "max_seq_length": 128})
    assert prepared.estimate["calibrated"] and prepared.estimate["seconds"] > 0
    assert 0.5 < prepared.estimate["memory_bytes"] / (measured["peak_memory_gb"] * 2**30) < 2
