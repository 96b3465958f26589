"""`mask_view`: one row as the trainer sees it, token by token; and that view as safe terminal text.

The pieces of text join to the rendered row. `render_terminal` lets no control character of the data through:
escape sequences, bidirectional overrides and the like are shown as their code points.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashgym.core.errors import fail
from bashgym.data.types import Finding

if TYPE_CHECKING:
    from bashgym.data.tokens import TokenizerBundle

MAX_TOKENS = 4096
"""A view shows at most this many tokens."""
MAX_PIECE = 200
"""A longer token text is cut in the terminal."""
_TRAINED, _PLAIN = "\x1b[1;32m", "\x1b[0m"


def mask_view(
    path: Path,
    row: int,
    model_dir: Path,
    *,
    max_seq_length: int = 1024,
    assistant_only_loss: bool | None = None,
    completion_only_loss: bool | None = None,
    dataset_format: str = "auto",
    column_mapping: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Row `row` (1-based) after truncation: {row, kind, policy, tokens: [{id, text, trained}], rendered, n_tokens,
    n_trained, full_length, truncated, omitted}. `rendered` is the text of the tokens shown. Errors: `dataset_missing`,
    `invalid_field` for a row that is not there, `row_not_encodable` for one that has no certain mask.
    """
    from bashgym.data.encode import iter_full, loss_policy
    from bashgym.data.formats import iter_examples
    from bashgym.data.tokens import TokenizerBundle

    if not path.is_file():
        raise fail("dataset_missing", f"there is no dataset file {path}", fields=["dataset_path"])
    notes: list[Finding] = []
    examples = iter_examples(path, notes, dataset_format=dataset_format, column_mapping=column_mapping)
    example = next((e for e in examples if e.row >= row), None)
    if example is None or example.row != row:
        said = next((f": {finding.message}" for finding in notes if row in finding.rows), "")
        raise fail("invalid_field", f"{path.name} has no usable row {row}{said}", fields=["row"])
    bundle = TokenizerBundle.load(model_dir)
    policy = loss_policy(example, assistant_only_loss, completion_only_loss)
    full = next(iter_full(bundle, [example], max_length=max_seq_length, policy=policy))
    kept = full.truncated(max_seq_length)
    pieces = token_texts(bundle, kept.input_ids[:MAX_TOKENS])
    shown = zip(kept.input_ids, pieces, kept.labels, strict=False)
    return {
        "row": row,
        "kind": "messages"
        if example.messages is not None
        else "text"
        if example.text is not None
        else "prompt_completion",
        "policy": policy.value,
        "tokens": [{"id": at, "text": text, "trained": label == at} for at, text, label in islice(shown, MAX_TOKENS)],
        "rendered": "".join(pieces),
        "n_tokens": len(kept.input_ids),
        "n_trained": kept.supervised,
        "full_length": kept.full_length,
        "truncated": kept.full_length > max_seq_length,
        "omitted": max(0, len(kept.input_ids) - MAX_TOKENS),
    }


def token_texts(bundle: TokenizerBundle, ids: list[int]) -> list[str]:
    """A text for each token; joined, they are the decoded row. A character of several tokens stands at its last."""
    texts: list[str] = []
    held: list[int] = []
    before: list[int] = []
    for n, at in enumerate(ids, start=1):
        held.append(at)
        # Decoders drop a leading space, so a piece is what it adds to the piece before it.
        text = bundle.decode(before + held)[len(bundle.decode(before)) :]
        if text.endswith("\ufffd") and len(held) < 4 and n < len(ids):
            texts.append("")
            continue
        texts.append(text)
        before, held = held, []
    return texts


def render_terminal(view: dict[str, Any], color: bool = True) -> str:
    """The view as text: trained tokens bright (with `color`) or in ⟦⟧ (without). Only our own escape sequences."""
    cut = f", cut from {view['full_length']}" if view["truncated"] else ""
    trained_of = f"{view['n_trained']} of {view['n_tokens']} tokens trained{cut}"
    lines = [f"row {view['row']} ({view['kind']}, loss on {view['policy']}): {trained_of}"]
    body, trained = [], False
    begin, end = (_TRAINED, _PLAIN) if color else ("⟦", "⟧")
    for token in view["tokens"]:
        if token["trained"] is not trained:
            body.append(begin if token["trained"] else end)
            trained = token["trained"]
        body.append(visible(token["text"][:MAX_PIECE]) + ("…" if len(token["text"]) > MAX_PIECE else ""))
    body.append(end if trained else "")
    lines.append("".join(body))
    if view["omitted"]:
        lines.append(f"... {view['omitted']} more tokens")
    return "\n".join(lines)


def visible(text: str) -> str:
    """`text` with a sign for each line break and a code point for each other character that does not print."""
    return "".join(c if c.isprintable() else "⏎\n" if c == "\n" else f"\\u{ord(c):04x}" for c in text)
