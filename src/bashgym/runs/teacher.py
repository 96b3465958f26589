"""The teacher of a distillation run, settled before anything is loaded: who it is, and whether it can teach this student.

Owns the comparison of vocabularies and the teacher's share of memory. Does not load weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.core.settings import Settings
from bashgym.data.tokens import TokenizerBundle
from bashgym.methods.distillation import TEXT_ONLY
from bashgym.models.catalog import ModelRef, resolve

_HOSTED = re.compile(r"(?:[\w.-]+[/:])*(?:claude|chatgpt|gpt-?[345]|o[134](?:-|$)|gemini)", re.IGNORECASE)
"""Names of models that only an API serves. Looked at after the name was found nowhere on this disk."""


def resolve_teacher(request: Mapping[str, Any], student: ModelRef, settings: Settings) -> ModelRef | None:
    """The teacher on this disk, fit for `student`; None where the request has none.

    `teacher_without_logits` for a hosted model, `teacher_vocab_differs`, and what `resolve` raises.
    """
    name = request.get("teacher_model") if request["strategy"] == "distillation" else None
    if not name:
        return None
    try:
        teacher = resolve(str(name), settings)
        if request["distillation_alignment"] == "same_vocabulary":
            check_sizes(student.config, teacher.config)
            _check_tokens(student.path, teacher.path)
        _check_window(request, teacher)
    except BashGymError as error:
        if error.code == "model_missing" and _HOSTED.match(str(name)):
            raise fail(
                "teacher_without_logits",
                f"{name} is a hosted model: it gives text, not the logits that distillation matches",
                hint="Leave teacher_model out to train on teacher_response alone (the run is then called "
                f"{TEXT_ONLY}), or name an open model on this disk.",
                fields=["teacher_model"],
            ) from error
        fields = [name for name in error.fields if name != "base_model"] or ["teacher_model"]
        raise fail(error.code, f"teacher: {error.message}", error.hint, fields) from error
    return teacher


def check_sizes(student: Mapping[str, Any], teacher: Mapping[str, Any]) -> None:
    """`teacher_vocab_differs` if two config.json state different vocabulary sizes: their logits cannot be subtracted."""
    ours, theirs = _vocab_size(student), _vocab_size(teacher)
    if ours != theirs:
        raise _differs(f"the student's vocab_size is {ours}, the teacher's {theirs}")


def _check_tokens(student: Path, teacher: Path) -> None:
    """Equal sizes are not enough: the same id has to be the same token."""
    files = [folder / "tokenizer.json" for folder in (student, teacher)]
    same = all(path.is_file() for path in files) and files[0].read_bytes() == files[1].read_bytes()
    if student == teacher or same:
        return
    ours, theirs = (
        TokenizerBundle.load(folder).tokenizer.get_vocab(with_added_tokens=True) for folder in (student, teacher)
    )
    if ours == theirs:
        return
    other = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    token = other[0]
    raise _differs(
        f"the sizes agree, but {len(other)} tokens differ, e.g. {token[:40]!r}: id {ours.get(token)} of the student, "
        f"{theirs.get(token)} of the teacher"
    )


def _check_window(request: Mapping[str, Any], teacher: ModelRef) -> None:
    window = TokenizerBundle.load(teacher.path).max_positions
    if window and window < request["max_seq_length"]:
        raise fail(
            "invalid_field",
            f"{teacher.name} sees {window} tokens, and max_seq_length is {request['max_seq_length']}",
            hint=f"Set max_seq_length to at most {window}, or take a teacher with a longer window.",
            fields=["max_seq_length"],
        )


def teacher_bytes(teacher: ModelRef, request: Mapping[str, Any], bytes_per_value: int) -> int:
    """Memory that the teacher adds: its weights, and its logits in float32 with their softened copies (no gradients)."""
    vocabulary = _vocab_size(teacher.config) or 128_000
    logits = int(request["batch_size"]) * int(request["max_seq_length"]) * vocabulary * 4
    return teacher.n_parameters * bytes_per_value + 3 * logits


def _vocab_size(config: Mapping[str, Any]) -> int | None:
    text = config.get("text_config")
    size = {**config, **text}.get("vocab_size") if isinstance(text, dict) else config.get("vocab_size")
    return size if isinstance(size, int) else None


def _differs(message: str) -> BashGymError:
    return fail(
        "teacher_vocab_differs",
        message,
        hint="Set distillation_alignment to uld, which compares across tokenizers (off-policy only), or take a teacher "
        "of the student's family with the same vocabulary.",
        fields=["teacher_model"],
    )
