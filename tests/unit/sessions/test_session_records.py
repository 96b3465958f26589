"""Records hold the recovery, a hint that names the error, no secret; the build is deterministic and whole or absent."""

import json
from collections import Counter
from pathlib import Path

import pytest

from bashgym.data.sessions.build import build
from bashgym.data.sessions.contract import TAG, faults
from bashgym.data.sessions.records import build_records, split_of
from bashgym.data.sessions.redact import scrub_session

from .session_cases import record, session, write_own, write_rows

MISSING = ("cat note.txt", "cat: note.txt: No such file or directory", 1)
EXAMPLES = Path(__file__).parents[3] / "examples/sessions"


def one(*triples, **more):
    (made,), _, _ = build_records(session(*triples, **more), "f.json")
    return made


def test_the_target_is_the_recovery_and_the_hint_stands_in_the_hinted_context_only():
    made = one(("ls", "notes.txt", 0), MISSING, ("cat notes.txt", "hi", 0))
    assert not faults(made)
    assert made["target_text"] == "cat notes.txt" and made["source_metadata"]["failed_action"] == "cat note.txt"
    assert (
        made["hint_text"]
        == "The path `note.txt` does not exist: look at what is there and name that. There is `notes.txt`."
    )
    assert TAG not in made["original_context"]
    assert made["hinted_context"].replace(f"\n{TAG} {made['hint_text']}", "") == made["original_context"]
    assert made["original_context"].startswith("Task: Do it.\n") and made["original_context"].endswith("\nNext action:")
    assert made["target_text"] not in made["original_context"]


def test_the_context_holds_the_last_three_steps_at_five_hundred_characters_each():
    early = [(f"echo {i}", "z" * 9000, 0) for i in range(4)]
    context = one(*early, MISSING, ("cat notes.txt", "hi", 0), task="t" * 9000)["original_context"]
    assert "echo 1" not in context and "echo 2" in context and "echo 3" in context and "cat note.txt" in context
    assert max(len(line) for line in context.splitlines()) < 530


def test_the_id_is_a_digest_of_the_content():
    steps = (MISSING, ("cat notes.txt", "hi", 0))
    first, again, other = one(*steps), one(*steps), one(*steps, task="Else.")
    assert first == again and first["record_id"] != other["record_id"] and len(first["record_id"]) == 24


def test_confidence_is_lower_where_the_reader_judged_and_quality_does_not_follow_it():
    told = one(MISSING, ("cat notes.txt", "hi", 0))
    judged = one((*MISSING[:2], None), ("cat notes.txt", "hi", 0))
    late = one(MISSING, ("echo", "", 0), ("echo", "", 0), ("cat notes.txt", "hi", 0))
    assert (told["reader_confidence"], told["verifier_outcome"]) == (0.78, "failed")
    assert (judged["reader_confidence"], judged["verifier_outcome"]) == (0.68, "decision_failure")
    assert told["quality_score"] == judged["quality_score"] == 1.0 and late["quality_score"] == 0.8


def test_failures_that_make_no_record_are_counted_by_reason():
    made, skipped, errors = build_records(
        session(MISSING, ("make x", "", 1), ("make x", "", 0), ("gcc a", "", 1), ("gcc a " + "b" * 5000, "", 0)),
        "f.json",
    )
    assert not made and not errors
    assert skipped == {"no_recovery": 1, "retry_succeeded": 1, "target_too_long": 1}


def test_a_session_that_forges_the_tag_gives_no_record():
    made, skipped, errors = build_records(
        session((MISSING[0], f"{TAG} do it: {MISSING[1]}", 1), ("cat notes.txt", "", 0)), "f"
    )
    assert not made and skipped == {"invalid_record": 1} and "original_context" in errors[0]


CANARIES = {
    "sk-": "sk-proj-Canary0123456789abcdefghij",
    "github": "ghp_Canary0123456789abcdefghijklmnopqrs",
    "password": "CanaryHunter2",
    "aws": "AKIACANARY0123456789",
    "url": "canaryuser:canarypass",
    "bearer": "CanaryBearer0123456789abc",
    "basic": "Q2FuYXJ5OmNhbmFyeQ==",
    "body": "CANARYKEYBODY0123456789",
    "env": "canary-fake-key-0000-not-real",
    "json": "canary_json_value",
}
LEAKS = "\n".join(
    [
        f"OPENAI={CANARIES['sk-']} {CANARIES['github']} {CANARIES['aws']}",
        f"password={CANARIES['password']} PASSWORD: '{CANARIES['password']}'",
        f"git clone https://{CANARIES['url']}@host/x",
        f"curl -H 'Authorization: Bearer {CANARIES['bearer']}' -H 'authorization: Basic {CANARIES['basic']}'",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARIES['body']}\n-----END RSA PRIVATE KEY-----",
        f"MY_API_KEY={CANARIES['env']}",
        f'{{"client_secret": "{CANARIES["json"]}", "access_token":"{CANARIES["json"]}"}}',
        f"mysql --password {CANARIES['password']}",
    ]
)


def test_no_planted_secret_is_written_anywhere(tmp_path):
    traces, out = tmp_path / "traces", tmp_path / "out/records.jsonl"
    traces.mkdir()
    write_own(
        traces / "a.json",
        (f"cat .env # {CANARIES['sk-']}", LEAKS, 0),
        ("cat note.txt", f"{LEAKS}\n{MISSING[1]}", 1),
        ("cat notes.txt", LEAKS, 0),
        ("curl -u x api", "error: no", 1),
        (f"curl -H 'Authorization: Bearer {CANARIES['bearer']}' api", "ok", 0),
        session_id=f"token={CANARIES['env']}",
    )
    doc = build(traces, out)
    said = out.read_text() + json.dumps(doc)
    assert [name for name, secret in CANARIES.items() if secret in said] == []
    assert doc["record_count"] == 1 and doc["skipped"] == {"secret_in_target": 1}
    assert doc["redacted"]["password"] and doc["redacted"]["private key"] and "cat notes.txt" in said


def test_ordinary_text_is_left_as_it_is():
    found = Counter()
    plain = session(
        ("grep -n token src/a.py", "tokens: 128\nmax_tokens=64\npassword policy\nPWD=/home/dev\nnum_token: 3", 0)
    )
    assert scrub_session(plain, found) == plain and not +found


def test_the_build_is_the_same_twice_and_takes_each_record_once(tmp_path):
    traces = tmp_path / "traces"
    (traces / "copy").mkdir(parents=True)
    write_own(traces / "a.json", MISSING, ("cat notes.txt", "", 0))
    (traces / "broken.json").write_text("{")
    docs = [build(traces, tmp_path / name) for name in ("one.jsonl", "two.jsonl")]
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert docs[0]["record_count"] == 1 and [entry["file"] for entry in docs[0]["unreadable"]] == ["broken.json"]


def test_confidence_limit_and_split_keep_what_they_say(tmp_path):
    traces, out = tmp_path / "traces", tmp_path / "r.jsonl"
    traces.mkdir()
    for i in range(60):
        code = 1 if i % 2 else None
        write_own(traces / f"{i:02d}.json", (*MISSING[:2], code), ("cat notes.txt", "", 0), session_id=f"s{i}")
    assert build(traces, out, min_confidence=0.7)["skipped"] == {"below_min_confidence": 30}
    assert build(traces, out, limit=7)["record_count"] == 7
    sides = {}
    for side in ("train", "validation"):
        sides[side] = build(traces, out, split=side)["record_count"]
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert (
            {row["source_metadata"]["split"] for row in rows} == {side} == {split_of(row["session_id"]) for row in rows}
        )
    assert sum(sides.values()) == 60 and 1 <= sides["validation"] <= 15


def test_nothing_found_leaves_the_old_file_and_says_why(tmp_path):
    traces, out = tmp_path / "traces", write_rows(tmp_path / "r.jsonl", [record()])
    traces.mkdir()
    assert ".claude" in build(traces, out)["hint"]
    write_rows(traces / "session-1.jsonl", [{"sessionId": "x", "kind": "main"}])
    doc = build(traces, out)
    assert doc["ok"] is False and ".jsonl" in doc["hint"] and "sessionId" in doc["hint"]
    assert json.loads(out.read_text()) == record()


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("count_errors.json", ["grep -c ERROR app.log.1"]),
        ("plot_usage.json", ["pip install -r requirements.txt"]),
        ("rollout-codex_example.jsonl", ["pytest tests"]),
        (
            "claude_code_example.jsonl",
            ["npm run build", '{"arguments": {"file_path": "/srv/site/dist/index.html"}, "name": "Read"}'],
        ),
    ],
)
def test_the_example_sessions_give_their_recoveries(tmp_path, name, targets):
    (tmp_path / name).write_bytes((EXAMPLES / name).read_bytes())
    build(tmp_path, tmp_path / "out/r.jsonl")
    assert [json.loads(line)["target_text"] for line in (tmp_path / "out/r.jsonl").read_text().splitlines()] == targets
