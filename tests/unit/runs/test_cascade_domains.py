"""A row has one domain, and a dataset is parted without loss or doubles."""

import json

import pytest

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.runs.cascade_domains import DEFAULT, check_domains, domain_of, part


def calling(*tools, **more):
    calls = [{"type": "function", "function": {"name": tool, "arguments": {}}} for tool in tools]
    return {"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": calls}], **more}


@pytest.mark.parametrize(
    ("row", "domain"),
    [
        (calling("Read"), "file_operations"),
        (calling("Write", "Bash", "edit"), "file_operations"),
        (calling("Bash", "Read"), "file_operations"),
        (calling("Bash"), "bash_commands"),
        (calling("Grep", "Glob", "Read"), "search_and_navigate"),
        (calling(*["Bash"] * 5), "multi_step_reasoning"),
        (calling(*["Bash"] * 4), "bash_commands"),
        (calling(), None),
        (calling("WebSearch"), None),
        (calling("Bash", domain="file_operations"), "file_operations"),
        (calling("Bash", metadata={"domain": "search_and_navigate"}), "search_and_navigate"),
        (calling("Bash", domain="cooking"), None),
        (calling(*["Bash"] * 5, metadata={"repo": "org/tool box"}), "repo_tool_box"),
        (calling("Bash", repo="other"), "bash_commands"),
        (
            {"prompt": [], "chosen": calling("Grep")["messages"], "rejected": calling("Bash")["messages"]},
            "search_and_navigate",
        ),
        ({"prompt": "x", "steps": [{"tool_name": "Read"}, {"tool": "Bash"}, {"tool": "Bash"}]}, "bash_commands"),
        ({"messages": [{"role": "tool", "tool": "Bash"}]}, None),
        ({"messages": [{"role": "assistant", "function_call": {"name": "Bash"}}]}, "bash_commands"),
        ({"messages": [1, None, {"tool_calls": 3}, {"tool_calls": [4, {"function": 5}, {"name": 6}]}]}, None),
        ({"messages": "Bash", "metadata": "Bash", "repo": 7, "domain": []}, None),
    ],
)
def test_a_row_has_one_domain(row, domain):
    assert domain_of(row, [*DEFAULT, "repo_tool_box"]) == domain


def test_only_wanted_domains_count_and_the_first_wins_a_tie():
    assert domain_of(calling(*["Bash"] * 6), ["bash_commands"]) == "bash_commands"
    assert domain_of(calling("Read"), ["bash_commands"]) is None
    assert domain_of(calling("Bash", "Read"), ["bash_commands", "file_operations"]) == "bash_commands"


def test_a_dataset_is_parted_whole(tmp_path):
    rows = [calling("Read", n=1), calling("Bash", n=2), calling("Read", n=3), calling("WebSearch", n=4)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = part(path, ["bash_commands", "file_operations", "repo_x"], tmp_path, {})
    assert (found["rows"], found["left_out"], found["sha256"]) == (3, 1, digest_file(path))
    assert {name: entry["rows"] for name, entry in found["parts"].items()} == {
        "bash_commands": 1,
        "file_operations": 2,
        "repo_x": 0,
    }
    written = tmp_path / "file_operations.jsonl"
    assert [json.loads(line) for line in written.read_text().splitlines()] == [rows[0], rows[2]]
    assert found["parts"]["file_operations"]["sha256"] == digest_file(written)


def test_a_row_in_two_domains_is_refused_whatever_its_labels_say(tmp_path):
    path, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    path.write_text("".join(json.dumps(calling("Bash", domain=name)) + "\n" for name in DEFAULT[:2]))
    with pytest.raises(BashGymError, match="rows 1 and 2 are the same, one in file_operations, one in bash_commands"):
        part(path, DEFAULT, tmp_path, {})
    path.write_text((json.dumps(calling("Bash")) + "\n") * 2)
    other.write_text(json.dumps(calling("Bash", domain="file_operations")) + "\n")
    seen = {}
    assert part(path, ["bash_commands"], tmp_path, seen)["rows"] == 2, (
        "a double of one domain is the preflight's question"
    )
    with pytest.raises(BashGymError, match="are the same"):
        part(other, ["file_operations"], tmp_path, seen)


def test_a_row_that_cannot_be_read_is_no_row_less(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(calling("Bash")) + '\n{"messages": \n')
    with pytest.raises(BashGymError) as refused:
        part(path, DEFAULT, tmp_path, {})
    assert refused.value.code == "dataset_unreadable"


@pytest.mark.parametrize("names", [[], ["bash_commands"] * 2, ["bash"], ["repo_"], ["repo_a/b"], ["repo_x\n"]])
def test_domains_are_known_and_different(names):
    with pytest.raises(BashGymError) as refused:
        check_domains(names)
    assert refused.value.code == "invalid_field" and refused.value.fields == ["domains"]
    check_domains(["repo_a.b-c", *DEFAULT])
