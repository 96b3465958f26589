"""Traces: the same for the same seed and answers, whole, and complete."""

import json

from polyguard.env import trace
from polyguard.env.engine import Engine
from polyguard.env.types import Action

FIELDS = {
    "step", "observation_sha256", "candidate", "verdict", "reward", "reward_breakdown", "primary_reward_channels",
    "transition", "failure_reasons", "anti_cheat_reasons", "checks", "timeout", "termination_reason",
}  # fmt: skip


def play(shift=0, **limits):
    engine = Engine(**limits)
    engine.reset("hard/complex_tradeoff", split="validation", index=4)
    while not engine.done:
        options = engine.observation.candidates
        engine.step(Action(options[(engine.steps + shift) % len(options)].candidate_id))
    return engine.trace


def test_the_same_play_has_the_same_bytes_and_another_has_others(tmp_path):
    trace.write(tmp_path / "a" / "1.jsonl", play())
    trace.write(tmp_path / "a" / "2.jsonl", play())
    first, second = ((tmp_path / "a" / f"{n}.jsonl").read_bytes() for n in (1, 2))
    assert first == second and trace.digest(play()) == trace.digest(play()) != trace.digest(play(3))


def test_a_row_has_all_that_a_reader_needs(tmp_path):
    trace.write(tmp_path / "t.jsonl", play())
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert set(row) == FIELDS and len(row["reward_breakdown"]) == 13 and len(row["primary_reward_channels"]) == 4
        assert len(row["observation_sha256"]) == 64 and row["timeout"] is False
    assert [row["termination_reason"] is not None for row in rows] == [False] * (len(rows) - 1) + [True]


def test_a_time_limit_is_noted():
    assert play(step_timeout_s=0.0)[-1]["timeout"] is True
    assert play(episode_timeout_s=0.0)[-1]["timeout"] is True


def test_a_file_is_called_after_its_episode_and_cannot_leave_its_folder():
    names = [trace.file_name(name) for name in ("a/b", "a:b", "../../x", "", "é" * 300, "easy/ddi:test:1", "\ud800")]
    assert len(set(names)) == len(names)
    assert all("/" not in name and len(name) < 100 and not name.startswith(".") for name in names)
