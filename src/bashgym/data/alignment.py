"""Where two tokenizers stand at the same place of the same answer, so that their models' predictions can be compared.

A next-token distribution depends on the text before it. Two models are compared after every character of the answer at
which both tokenizers have a token boundary, the answer's beginning and its end included.
"""

from __future__ import annotations

from bashgym.data.distillation_checks import answer_start
from bashgym.data.encode import IGNORED, encode_example, plan_example
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import Encoded, LossPolicy, SftExample

_ALL = 1 << 60
"""More characters than a row has."""


def boundaries(bundle: TokenizerBundle, example: SftExample, encoded: Encoded) -> tuple[str, dict[int, int]]:
    """The answer with what the template writes after it, and {characters of it that were read: index of the token there}.

    Only tokens whose successor is trained, i.e. whose prediction counts. Of several tokens that end in one character,
    the last.
    """
    plan = plan_example(bundle, example, LossPolicy.AUTO, _ALL)
    before, first = len(plan.prompt or ""), answer_start(encoded)
    offsets = bundle.tokenizer.encode(plan.text, add_special_tokens=plan.special).offsets
    ends = {
        offsets[at][1] - before: at
        for at in range(max(0, first - 1), len(encoded.labels) - 1)
        # A first token of the answer that takes characters of the prompt with it follows text that others do not see so.
        if encoded.labels[at + 1] != IGNORED and offsets[at][1] >= before
    }
    return plan.text[before:], ends


def align(
    student: TokenizerBundle, teacher: TokenizerBundle, example: SftExample, encoded: Encoded, max_length: int
) -> dict[str, list[int]]:
    """The teacher's ids of a row, cut at `max_length`, and for each token of both sides whether it is compared (1) or not.

    `encoded` is the student's. The n-th 1 of `aligned` and that of `teacher_aligned` are tokens at the same place, whose
    logits predict what follows there.
    `row_not_encodable` where the teacher's tokenizer or chat template does not take the row.
    """
    theirs = encode_example(teacher, example, max_length=max_length)
    ours_text, ours = boundaries(student, example, encoded)
    theirs_text, others = boundaries(teacher, example, theirs)
    parts = (at for at, (a, b) in enumerate(zip(ours_text, theirs_text, strict=False)) if a != b)
    shared = next(parts, min(len(ours_text), len(theirs_text)))
    ends = [end for end in ours if end in others and end <= shared]
    at, there = {ours[end] for end in ends}, {others[end] for end in ends}
    return {
        "teacher_input_ids": theirs.input_ids,
        "aligned": [int(index in at) for index in range(len(encoded.input_ids))],
        "teacher_aligned": [int(index in there) for index in range(len(theirs.input_ids))],
    }
