"""EnvironmentSpec: strict parsing, confinement, identity, what is protected and withheld."""

import hashlib

import pytest

from bashgym.core.errors import BashGymError
from bashgym.envs.spec import EnvironmentSpec


def make(**fields):
    return EnvironmentSpec.from_dict({"instruction": "do it", **fields})


def refused(**fields):
    with pytest.raises(BashGymError) as error:
        make(**fields)
    assert error.value.code == "environment_invalid"
    return error.value


def test_defaults_are_those_of_the_contract():
    spec = make()
    v, r, b = spec.verifier, spec.rollout, spec.build
    assert (v.kind, v.command, v.path, v.reward_type) == ("exact_success", "./verify.sh", "verify.sh", "binary")
    assert (v.success_threshold, v.timeout_sec, v.reward_components) == (1.0, 120.0, ())
    assert (b.dockerfile, b.network_disabled) == ("Dockerfile", True)
    assert (r.harness, r.max_steps, r.max_tool_calls) == ("bashgym-persistent-shell", 64, 64)
    assert (r.timeout_sec, r.bash_timeout_sec, r.max_prompt_tokens, r.max_response_tokens) == (7200, 120, 2048, 65536)


def test_the_id_comes_from_the_content_and_only_if_absent():
    assert make().id == f"env_{make().digest()[:16]}"
    assert make(id="mine-1").id == "mine-1"
    assert make(id="mine-1").digest() == make().digest()


@pytest.mark.parametrize(
    "change",
    [
        {"instruction": "do that"},
        {"files": {"a": "x"}},
        {"verifier": {"command": "true"}},
        {"verifier": {"timeout_sec": 5}},
        {"build": {"setup_commands": ["true"]}},
        {"rollout": {"max_steps": 3}},
        {"fixtures": [{"path": "a"}]},
    ],
)
def test_any_content_changes_the_digest(change):
    assert make(**change).digest() != make().digest()


def test_a_spec_survives_its_json_form():
    spec = make(axes=[{"name": "level", "value": 3}], files={"tests/a": "x"}, metadata={"protected_paths": ["tests/a"]})
    assert EnvironmentSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("fields", "field", "hint"),
    [
        ({"instructions": "x"}, "instructions", "instruction"),
        ({"verifier": {"comand": "x"}}, "verifier.comand", "command"),
        ({"rollout": {"max_step": 1}}, "rollout.max_step", "max_steps"),
        ({"fixtures": [{"path": "a", "knd": "x"}]}, "fixtures[0].knd", "kind"),
        (
            {"verifier": {"reward_components": [{"name": "a", "wieght": 1}]}},
            "verifier.reward_components[0].wieght",
            "weight",
        ),
    ],
)
def test_an_unknown_key_is_refused_by_name_with_the_nearest_one(fields, field, hint):
    error = refused(**fields)
    assert error.fields == [field.replace("[0]", "[]")] or error.fields == [field]
    assert hint in error.hint


def test_a_missing_instruction_is_named():
    with pytest.raises(BashGymError, match="instruction"):
        EnvironmentSpec.from_dict({"files": {}})


def test_an_alias_of_instruction_is_read_and_two_are_refused():
    assert EnvironmentSpec.from_dict({"prompt": "do it"}) == make()
    assert "prompt" in refused(prompt="do that").fields


def test_a_wrong_type_names_its_field():
    assert refused(rollout={"max_steps": "many"}).fields == ["rollout.max_steps"]


@pytest.mark.parametrize(
    "path",
    [
        "../a",
        "a/../../b",
        "/etc/passwd",
        "",
        ".",
        "a\0b",
        "a\nb",
        "a\\b",
        "\\\\host\\share",
        "a/",
        "./a",
        "a//b",
        "x" * 300,
        "..",
        "\x1b[2J",
    ],
)
@pytest.mark.parametrize("where", ["files", "verifier", "fixture", "protected"])
def test_paths_stay_below_the_workspace(path, where):
    fields = {
        "files": {"files": {path: "x"}},
        "verifier": {"verifier": {"path": path}},
        "fixture": {"fixtures": [{"path": path}]},
        "protected": {"metadata": {"protected_paths": [path + ("x" if path == "a/" else "")]}},
    }[where]
    if where == "protected" and path == "a/":
        assert make(**fields)
        return
    refused(**fields)


@pytest.mark.parametrize("path", ["a", "a/b.txt", ".hidden", "a b", "ü.txt", "%2e%2e", "a#b", "-rf", "..a", "a..b"])
def test_plain_paths_are_accepted(path):
    assert path in make(files={path: "x"}).files


def test_a_file_cannot_be_a_folder_too():
    assert "folder of a/b" in refused(files={"a": "x", "a/b": "y"}).message


def test_a_checksum_is_measured():
    digest = hashlib.sha256(b"x").hexdigest()
    assert make(files={"a": "x"}, fixtures=[{"path": "a", "checksum": f"sha256:{digest}"}])
    assert refused(files={"a": "y"}, fixtures=[{"path": "a", "checksum": digest}]).fields == ["fixtures.checksum"]


@pytest.mark.parametrize(
    "fields",
    [
        {"instruction": "  "},
        {"id": "../x"},
        {"verifier": {"command": " "}},
        {"verifier": {"timeout_sec": 0}},
        {"verifier": {"timeout_sec": float("nan")}},
        {"verifier": {"success_threshold": float("inf")}},
        {"verifier": {"reward_type": "shaped"}},
        {"verifier": {"reward_type": "multi"}},
        {"verifier": {"reward_components": [{"name": "a"}, {"name": "a"}]}},
        {"verifier": {"reward_components": [{"name": "a", "weight": float("nan")}]}},
        {"rollout": {"max_steps": 0}},
        {"metadata": {"x": float("nan")}},
        {"metadata": {"protected_paths": "tests"}},
        {"metadata": {"allow_protected_file_edits": "no"}},
        {"files": {"a": "\ud800"}},
    ],
)
def test_nonsense_is_refused(fields):
    refused(**fields)


def test_deep_metadata_is_refused_not_a_crash():
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert refused(metadata=deep).fields == ["metadata"]


def test_what_is_protected():
    spec = make(
        files={"verify.sh": "", "tests/a.py": "", "src/b.py": "", "secret": "", "notes": "", "kept": ""},
        fixtures=[{"path": "secret", "kind": "private"}, {"path": "kept", "metadata": {"protected": True}}],
        metadata={"protected_paths": ["src/"]},
    )
    assert spec.protected() == ("env.json", "kept", "secret", "src", "tests", "verify.sh")
    assert spec.withheld() == {"verify.sh", "secret"}


def test_nothing_is_protected_where_edits_are_allowed_but_the_verifier_is_still_withheld():
    spec = make(files={"verify.sh": "", "tests/a": ""}, metadata={"allow_protected_file_edits": True})
    assert spec.protected() == () and spec.withheld() == {"verify.sh"}
