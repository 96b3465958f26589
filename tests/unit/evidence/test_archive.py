"""Bundles: everything that was sealed is found to be as it was, or not."""

import io
import json
import random
import shutil
import stat
import tarfile

import pytest
from evidence_run import RUN_ID, edit, make_card

from bashgym.cli.lazy import load
from bashgym.cli.registry import ROOT, Group
from bashgym.core.canonical import canonical_json, digest_file, digest_json
from bashgym.core.errors import BashGymError
from bashgym.evidence import signing
from bashgym.evidence.archive import bundle, sign, verify
from bashgym.evidence.narrative import explain, mend
from bashgym.methods.spec import EvidenceKind


@pytest.fixture
def sealed(run, tmp_path):
    assert make_card(run, decision="promote")["ok"]
    (run / "checkpoint-5").mkdir()
    (run / "checkpoint-5/big").write_text("x")
    out = tmp_path / "out" / RUN_ID
    bundle(run, out)
    shutil.rmtree(run)  # the bundle has to stand by itself
    return out


def test_a_bundle_holds_by_itself_without_checkpoints(sealed):
    found = verify(sealed, promotion=True)
    assert found["ok"] and found["sealed"] and found["decision"] == "promote", found["findings"]
    assert not (sealed / "checkpoint-5").exists() and (sealed / "final/adapter_model.safetensors").exists()


def test_a_changed_byte_anywhere_is_found(sealed, tmp_path):
    signing.keygen(tmp_path / "key")
    sign(sealed, tmp_path / "key")
    names = sorted(p.relative_to(sealed).as_posix() for p in sealed.rglob("*") if p.is_file())
    assert len(names) >= 13 and {"MANIFEST.json", "MANIFEST.sig.json"} <= {*names}
    draw = random.Random(0)
    for name in names:
        path = sealed / name
        data = path.read_bytes()
        for where in {0, len(data) - 1, *(draw.randrange(len(data)) for _ in range(3))}:
            path.write_bytes(data[:where] + bytes([data[where] ^ 1 << draw.randrange(8)]) + data[where + 1 :])
            assert not holds(sealed), (name, where)
        for changed in (data[:-1], data + b"\n", b""):
            path.write_bytes(changed)
            assert not holds(sealed), (name, len(changed))
        path.write_bytes(data)
    assert holds(sealed)


def holds(folder):
    try:
        return verify(folder, promotion=True)["ok"]
    except BashGymError as error:
        assert error.code in ("file_unreadable", "run_card_invalid", "file_missing"), error
        return False


def test_added_and_removed_files_are_found(sealed):
    (sealed / "new.txt").write_text("x")
    assert verify(sealed)["problems"] == [{"file": "new.txt", "problem": "not in the manifest"}]
    (sealed / "new.txt").unlink()
    (sealed / "request.json").unlink()
    assert {"file": "request.json", "problem": "missing"} in verify(sealed)["problems"]


def resealed(folder, manifest):
    """As an author would who makes the bundle again."""
    body = {name: value for name, value in manifest.items() if name != "manifest_digest"}
    (folder / "MANIFEST.json").write_bytes(canonical_json({**body, "manifest_digest": digest_json(body)}))


def test_a_manifest_rewritten_around_a_lie_is_caught_by_the_card(sealed, tmp_path):
    scores = sealed / "evals/eval_1/candidate.jsonl"
    scores.write_text(scores.read_text().replace('"passed": false', '"passed": true'))
    manifest = json.loads((sealed / "MANIFEST.json").read_text())
    manifest["files"]["evals/eval_1/candidate.jsonl"] = {
        "sha256": digest_file(scores),
        "size_bytes": scores.stat().st_size,
    }
    (sealed / "MANIFEST.json").write_text(json.dumps(manifest))
    found = verify(sealed, promotion=True)
    assert found["ok"] is False
    assert "evidence_digest_mismatch" in {f["code"] for f in found["findings"]}


def test_tar_bundles_hold_and_hostile_ones_are_refused(run, tmp_path):
    make_card(run, decision="promote")
    out = tmp_path / "b.tar"
    assert bundle(run, out)["n_files"] >= 12
    assert verify(out, promotion=True)["ok"]
    with pytest.raises(BashGymError) as caught:
        bundle(run, out)
    assert caught.value.code == "file_exists"
    for name, change in (
        ("link.tar", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("hard.tar", {"type": tarfile.LNKTYPE, "linkname": "x"}),
        ("fifo.tar", {"type": tarfile.FIFOTYPE}),
        ("device.tar", {"type": tarfile.CHRTYPE}),
    ):
        with tarfile.open(tmp_path / name, "w") as tar:
            info = tarfile.TarInfo("b/x")
            for key, value in change.items():
                setattr(info, key, value)
            tar.addfile(info)
        with pytest.raises(BashGymError) as caught:
            verify(tmp_path / name)
        assert caught.value.code == "path_outside", name
    for name, member in (("climb.tar", "../x"), ("absolute.tar", "/x")):
        with tarfile.open(tmp_path / name, "w") as tar:
            info = tarfile.TarInfo(member)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
        with pytest.raises(BashGymError):
            verify(tmp_path / name)
    with tarfile.open(tmp_path / "unsealed.tar", "w") as tar:
        tar.add(run, run.name)
    with pytest.raises(BashGymError, match="is no bundle"):
        verify(tmp_path / "unsealed.tar")
    (tmp_path / "no.tar").write_bytes(b"not a tar")
    with pytest.raises(BashGymError) as caught:
        verify(tmp_path / "no.tar")
    assert caught.value.code == "file_unreadable"


def test_links_in_a_run_are_no_part_of_a_bundle(run, tmp_path):
    make_card(run, decision="promote")
    out = tmp_path / RUN_ID
    bundle(run, out)
    (out / "l").symlink_to("/etc/passwd")
    with pytest.raises(BashGymError, match="is a link"):
        verify(out)


def test_a_card_that_binds_files_elsewhere_is_not_bundled(run, tmp_path):
    outside = tmp_path / "metrics.jsonl"
    shutil.copy(run / "metrics.jsonl", outside)
    make_card(run, metrics=str(outside))
    with pytest.raises(BashGymError, match="outside of the run directory"):
        bundle(run, tmp_path / "b")
    with pytest.raises(BashGymError) as caught:
        (run / "run_card.json").unlink()
        bundle(run, tmp_path / "b")
    assert caught.value.code == "file_missing" and not (tmp_path / "b").exists()


def test_a_run_directory_and_a_card_can_be_verified_without_a_bundle(run):
    make_card(run, decision="promote")
    assert verify(run)["ok"] and verify(run)["sealed"] is False
    assert verify(run / "run_card.json")["ok"]
    edit(run / "run_state.json", status="failed")
    assert verify(run, promotion=True)["ok"] is False


def test_signatures(sealed, tmp_path):
    key = tmp_path / "key"
    made = signing.keygen(key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(BashGymError) as caught:
        signing.keygen(key)
    assert caught.value.code == "file_exists"
    with pytest.raises(BashGymError) as caught:
        verify(sealed, public_key=tmp_path / "key.pub")
    assert caught.value.code == "signature_invalid", "not signed yet"
    assert sign(sealed, key)["key_id"] == made["key_id"]
    assert verify(sealed, public_key=tmp_path / "key.pub", promotion=True)["signed_by"] == made["key_id"]
    signing.keygen(tmp_path / "other")
    with pytest.raises(BashGymError) as caught:
        verify(sealed, public_key=tmp_path / "other.pub")
    assert caught.value.code == "signature_invalid"
    edit(sealed / "MANIFEST.json", created_at="2020-01-01T00:00:00Z")
    with pytest.raises(BashGymError) as caught:
        verify(sealed, public_key=tmp_path / "key.pub")
    assert caught.value.code == "signature_invalid"
    for bad in (tmp_path / "key.pub", sealed / "request.json"):
        with pytest.raises(BashGymError) as caught:
            sign(sealed, bad)
        assert caught.value.code == "signature_invalid"


def test_a_signature_is_of_its_content_and_of_nothing_else(sealed, tmp_path):
    signing.keygen(tmp_path / "key")
    sign(sealed, tmp_path / "key")
    found = verify(sealed)
    assert found["ok"] and found["signed_by"] is None, "without a key nobody is vouched for"
    assert any("--public-key" in line for line in found["not_recomputed"])
    path = sealed / "MANIFEST.sig.json"
    good = json.loads(path.read_text())
    signing.keygen(tmp_path / "other")
    for change in (
        {"key_id": "0" * 16},
        {"algorithm": "none"},
        {"schema_version": "x"},
        {"note": "x"},
        {"signature": good["signature"] + "="},
        {"signature": "AAAA"},
        {"public_key": (tmp_path / "other.pub").read_text()},
        {"public_key": good["public_key"] + "\n"},
        {"public_key": ""},
    ):
        path.write_bytes(canonical_json({**good, **change}))
        found = verify(sealed)
        assert found["ok"] is False and found["problems"][0]["file"] == path.name, change
    path.write_text(json.dumps(good))
    assert verify(sealed)["ok"] is False, "other bytes"
    path.write_bytes(canonical_json(good))
    manifest = json.loads((sealed / "MANIFEST.json").read_text())
    resealed(sealed, {**manifest, "created_at": "2020-01-01T00:00:00Z"})
    found = verify(sealed)
    assert [p["file"] for p in found["problems"]] == [path.name], "sealed again, and not signed again"


def test_a_bundle_of_another_card_is_found(sealed):
    manifest = json.loads((sealed / "MANIFEST.json").read_text())
    for change in ({"run_id": "run_other"}, {"card_digest": "0" * 64}):
        resealed(sealed, {**manifest, **change})
        assert {"file": "MANIFEST.json", "problem": "names another card"} in verify(sealed)["problems"]
    for files in ([], None):
        resealed(sealed, {**manifest, "files": files})
        with pytest.raises(BashGymError, match="no manifest"):
            verify(sealed)


def test_a_changed_bundle_is_not_signed(sealed, tmp_path):
    signing.keygen(tmp_path / "key")
    (sealed / "request.json").write_text("{}")
    with pytest.raises(BashGymError, match="not what was sealed"):
        sign(sealed, tmp_path / "key")


def test_the_explanation_names_each_gap_and_its_mend(run):
    (run / "release_evidence.json").unlink()
    make_card(run)
    told = explain(verify(run, promotion=True))
    assert told["ok"] is False
    by_code = {gap["code"]: gap["mend"] for gap in told["gaps"]}
    assert f"bashgym eval run --model {RUN_ID}" in by_code["missing_release_evidence_path"]
    assert any("does not hold" in line for line in told["lines"])


def test_a_good_run_is_explained_as_holding(run):
    make_card(run, decision="promote")
    told = explain(verify(run, promotion=True))
    assert told["ok"] and told["gaps"] == [] and "As a promotion it holds." in told["lines"]
    behind = next(line for line in told["lines"] if line.startswith("Behind it stands"))
    assert "metrics (metrics.jsonl)" in behind and "release_evidence" in behind


def test_what_could_not_be_recomputed_is_said_once(run, models):
    make_card(run, decision="promote")
    (models.parent / "train.jsonl").unlink()
    told = explain(verify(run, promotion=True))
    assert sum("cannot be checked" in line for line in told["lines"]) == 1


def commands(text):
    return [part.strip().split() for part in text.split(";") if part.strip().startswith("bashgym ")]


@pytest.mark.parametrize("kind", [*EvidenceKind])
def test_every_kind_of_evidence_has_a_mend_that_is_a_command(kind):
    text = mend(kind, RUN_ID, "base/model")
    assert "{" not in text and "attach-evidence" in text
    for words in commands(text.replace(" (see the docstring of bashgym.evidence.retrieval)", "")):
        group = ROOT
        while isinstance(group, Group):
            group = group.commands[words.pop(0) if words[0] != "bashgym" else words.pop(0) and words.pop(0)]
        known = {option for param in load("x", group).params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= known, (kind, text)


def test_a_kind_that_does_not_hold_is_told_with_its_mend(run, tmp_path):
    path = tmp_path / "canaries.json"
    path.write_text(json.dumps({"run_id": RUN_ID}))
    make_card(run, evidence={"canaries": str(path)})
    by_code = {gap["code"]: gap["mend"] for gap in explain(verify(run, promotion=True))["gaps"]}
    assert f"bashgym eval canaries --run {RUN_ID}" in by_code["canaries_not_ok"]
    edit(run / "run_state.json", status="failed")
    by_code = {gap["code"]: gap["mend"] for gap in explain(verify(run, promotion=True))["gaps"]}
    assert "completed run" in by_code["run_not_completed"]
