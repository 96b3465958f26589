import pytest

from bashgym.store.checkpoints import MANIFEST, last_valid, problems, prune, seal


def _checkpoint(root, step):
    folder = root / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"w" * 100)
    (folder / "optimizer.pt").write_bytes(b"o" * 100)
    seal(folder)
    return folder


def test_a_sealed_checkpoint_is_valid(tmp_path):
    assert problems(_checkpoint(tmp_path, 10)) == []


@pytest.mark.parametrize("harm", ["byte", "missing", "extra", "short", "unsealed", "link"])
def test_any_change_makes_it_invalid(tmp_path, harm):
    folder = _checkpoint(tmp_path, 10)
    weights = folder / "adapter_model.safetensors"
    if harm == "byte":
        weights.write_bytes(b"w" * 99 + b"x")
    elif harm == "missing":
        (folder / "optimizer.pt").unlink()
    elif harm == "extra":
        (folder / "evil.bin").write_bytes(b"")
    elif harm == "short":
        weights.write_bytes(b"w" * 99)
    elif harm == "unsealed":
        (folder / MANIFEST).unlink()
    else:
        (tmp_path / "other").write_bytes(b"w" * 100)
        weights.unlink()
        weights.symlink_to(tmp_path / "other")
    assert problems(folder)


def test_the_newest_valid_one_is_taken_and_the_rest_is_named(tmp_path):
    good = _checkpoint(tmp_path, 20)
    _checkpoint(tmp_path, 10)
    (_checkpoint(tmp_path, 100) / "optimizer.pt").unlink()
    (tmp_path / "checkpoint-abc").mkdir()
    found, passed_over = last_valid(tmp_path)
    assert found == good
    assert len(passed_over) == 1 and "checkpoint-100" in passed_over[0] and "optimizer.pt" in passed_over[0]


def test_prune_keeps_the_newest(tmp_path):
    for step in (9, 10, 100):
        _checkpoint(tmp_path, step)
    assert prune(tmp_path, 5) == [] and prune(tmp_path, 3) == []
    assert prune(tmp_path, 1) == ["checkpoint-9", "checkpoint-10"]
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-100"]
    assert prune(tmp_path, 0) == ["checkpoint-100"]
