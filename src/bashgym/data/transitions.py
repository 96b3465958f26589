"""World-model transitions of a replay as prompts: what will the next command show?

Owns the prompt's wording and which rows are valid. A row of the file is a replay record; each of its transitions is one
prompt, with the observation that followed as `answer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bashgym.core.errors import BashGymError
from bashgym.data.findings import Collector
from bashgym.data.preferences import PromptRow
from bashgym.data.readers import Scan
from bashgym.data.replay_records import ReplayRecord, Transition, parse_record

ASK = "Predict what the terminal shows after the last command. Answer with that output only."


def prompt_text(transition: Transition, window: int) -> str:
    """The task, the last `window` earlier actions with what they showed, and the action to predict."""
    earlier = transition.prior[-window:] if window else []
    shown = [f"$ {pair.get('action', '')}\n{pair.get('state', '')}" for pair in earlier]
    return "\n".join([ASK, f"Task: {transition.instruction}", *shown, f"$ {transition.action}\n"])


def scan_transitions(scan: Scan, collector: Collector, window: int) -> Iterator[PromptRow]:
    """The prompts of the valid records, in order; errors name what is wrong with the others.

    A record without a transition (an attempt that ran no command) is a warning.
    """
    for batch in scan:
        for number, value in zip(batch.numbers, batch.values, strict=True):
            try:
                record = parse_record(value)
            except BashGymError as error:
                collector.error("replay_invalid", error.message, number, error.fields[0])
                continue
            if not _transitions(record):
                text = "has no transition and is left out; include_world_model_replay records them"
                collector.warn("no_transition", text, number, "world_model.rwml_transitions")
            for transition in _transitions(record):
                yield PromptRow(prompt_text(transition, window), {}, number, {"answer": transition.next_state})


def _transitions(record: ReplayRecord) -> list[Transition]:
    return record.world_model.rwml_transitions if record.world_model else []


def transition_rows(path: Path, window: int, *, wrap: bool) -> Iterator[PromptRow]:
    """The prompts of a file; with `wrap` each as one user turn. Raises `dataset_*`."""
    collector = Collector([])
    for row in scan_transitions(Scan(path, collector), collector, window):
        if wrap and isinstance(row.prompt, str):
            row.prompt = [{"role": "user", "content": row.prompt}]
        yield row
