"""Session files of three formats become the same steps; what is not a step of the main thread is left out."""

import json

import pytest

from bashgym.core.errors import BashGymError
from bashgym.data.sessions.outcomes import Outcome, outcome
from bashgym.data.sessions.reading import read_session, session_files

from .session_cases import write_rows


def turn(uuid, role, content, parent=None, **more):
    return {
        "type": role,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": "s1",
        "message": {"role": role, "content": content},
        **more,
    }


def use(call_id, command):
    return [{"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": command}}]


def result(call_id, text, **more):
    return [{"type": "tool_result", "tool_use_id": call_id, "content": text, **more}]


def claude(tmp_path, rows):
    return read_session(write_rows(tmp_path / "a.jsonl", rows))


def test_claude_results_are_paired_by_id_and_the_missing_error_flag_means_false(tmp_path):
    read = claude(
        tmp_path,
        [
            turn("1", "user", "Count."),
            turn("2", "assistant", [{"type": "text", "text": "I look."}, *use("a", "ls x"), *use("b", "ls y")], "1"),
            turn("3", "user", result("b", [{"type": "text", "text": "y1"}]), "2"),
            turn("4", "user", result("a", "no x", is_error=True), "2"),
            turn("5", "assistant", use("c", "ls z"), "4"),
        ],
    )
    assert (read.task, read.session_id) == ("Count.", "s1")
    assert [(s.action, s.output, s.success) for s in read.steps] == [
        ("ls x", "no x", False),
        ("ls y", "y1", True),
        ("ls z", "", None),
    ]
    assert [s.intent for s in read.steps] == ["I look.", "I look.", ""]


@pytest.mark.parametrize("flag", ["isSidechain", "isMeta", "isApiErrorMessage", "isAbortedMidStream"])
def test_flagged_claude_records_are_no_turns(tmp_path, flag):
    rows = [turn("1", "user", "hidden", **{flag: True}), turn("2", "assistant", use("a", "ls"), **{flag: True})]
    read = claude(tmp_path, [*rows, turn("3", "user", "<command-name>/init"), turn("4", "user", "Seen.", "3")])
    assert read.task == "Seen." and not read.steps


def test_a_rewound_branch_is_left_out(tmp_path):
    rows = [
        turn("1", "user", "Go."),
        turn("2", "assistant", use("a", "abandoned"), "1"),
        turn("3", "assistant", use("b", "kept"), "1"),
        turn("4", "user", result("b", "ok"), "3"),
    ]
    assert [step.action for step in claude(tmp_path, rows).steps] == ["kept"]


def test_bad_lines_are_named_and_the_rest_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    good = json.dumps(turn("1", "assistant", use("a", "ls")))
    path.write_bytes(b'"text"\n7\n' + good.encode() + b'\n\xff\xfe\n{"type": "user", "mess')
    read = read_session(path)
    assert [fault[:6] for fault in read.faults] == ["line 1", "line 2", "line 4", "line 5"]
    assert "cut off" in read.faults[-1] and len(read.steps) == 1


def codex(tmp_path, *items):
    return read_session(write_rows(tmp_path / "r.jsonl", [{"type": k, "payload": v} for k, v in items]))


def call(call_id, arguments, name="shell"):
    return "response_item", {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}


def output(call_id, text):
    return "response_item", {"type": "function_call_output", "call_id": call_id, "output": text}


def test_codex_exit_codes_are_read_wherever_they_stand(tmp_path):
    read = codex(
        tmp_path,
        ("session_meta", {"id": "c1", "cwd": "/x"}),
        ("response_item", {"role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]}),
        ("response_item", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Test it."}]}),
        call("a", json.dumps({"command": ["bash", "-lc", "make a"]})),
        output("a", json.dumps({"output": "bad", "metadata": {"exit_code": 2}})),
        call("b", json.dumps({"cmd": "make b"}), "exec_command"),
        output("b", "Wall time: 1\nProcess exited with code 3\nOutput:\nworse"),
        call("c", {"command": "make c"}),
        ("event_msg", {"type": "exec_command_end", "call_id": "c", "exit_code": 4}),
        output("c", "worst"),
        call("d", {"command": "make d"}),
        output("d", "patch rejected: empty patch"),
        call("e", {"command": "make e"}),
    )
    assert (read.task, read.session_id) == ("Test it.", "c1")
    assert [(s.action, s.output, s.exit_code) for s in read.steps] == [
        ("make a", "bad", 2),
        ("make b", "worse", 3),
        ("make c", "worst", 4),
        ("make d", "patch rejected: empty patch", None),
        ("make e", "", None),
    ]
    assert [outcome(s) for s in read.steps] == [Outcome.FAILED] * 4 + [Outcome.UNKNOWN]


def test_codex_calls_without_ids_take_the_output_that_follows(tmp_path):
    read = codex(
        tmp_path,
        (
            "response_item",
            {"type": "tool_call", "function": {"name": "run_shell_command"}, "arguments": {"command": "ls"}},
        ),
        ("response_item", {"type": "tool_result", "result": {"stdout": "a", "stderr": "", "exitCode": 0}}),
    )
    assert [(s.action, s.output, s.exit_code) for s in read.steps] == [("ls", "a", 0)]


def test_another_tools_store_is_named_and_not_read_in_part(tmp_path):
    path = write_rows(tmp_path / "session.jsonl", [{"sessionId": "x", "kind": "main"}, {"id": "m", "content": "hi"}])
    with pytest.raises(BashGymError) as caught:
        read_session(path)
    assert (
        caught.value.code == "file_unreadable"
        and ".jsonl" in caught.value.message
        and "sessionId" in caught.value.message
    )


def test_links_are_not_followed(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / f"{folder.name}.json").write_text("{}")
    (inside / "link.json").symlink_to(outside / "out.json")
    (inside / "folder").symlink_to(outside)
    assert [path.name for path in session_files(inside)] == ["in.json"]
