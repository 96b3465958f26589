"""Every file that a card names exists, is not empty, and has the bytes that were bound."""

from __future__ import annotations

from bashgym.evidence.bundle import Integrity, located, resolve_input, verify
from bashgym.evidence.card import PATH_FIELDS
from bashgym.evidence.context import Context
from bashgym.evidence.findings import Gate


def check_integrity(ctx: Context) -> None:
    """Re-hashes every entry; intact ones become `ctx.files`."""
    bound: dict[str, str] = {}
    for entry in ctx.card.evidence:
        if entry.kind in bound:
            ctx.book.fail(Gate.EVIDENCE, "evidence_duplicate", f"two entries for {entry.kind}", entry.kind)
            continue
        bound[entry.kind] = entry.path
        state = ctx.states[entry.kind] = verify(entry, ctx.card_dir)
        field = PATH_FIELDS.get(entry.kind, entry.kind)
        if state == Integrity.MISSING:
            code = f"missing_{field}_file"
            ctx.book.fail(Gate.EVIDENCE, code, f"{entry.path} is not there any more", field, path=entry.path)
        elif state == Integrity.EMPTY:
            code = "metrics_file_empty" if entry.kind == "metrics" else "evidence_file_empty"
            ctx.book.fail(Gate.EVIDENCE, code, f"{entry.path} is empty", field, path=entry.path)
        elif state == Integrity.CHANGED:
            message = f"{entry.path} differs from the file that the card was bound to"
            ctx.book.fail(Gate.EVIDENCE, "evidence_digest_mismatch", message, field, path=entry.path)
        else:
            ctx.files[entry.kind] = located(entry.path, ctx.card_dir)
        if entry.run_id and entry.run_id != ctx.card.run_id:
            message = f"{entry.path} speaks about {entry.run_id}, the card about {ctx.card.run_id}"
            ctx.book.fail(Gate.EVIDENCE, "evidence_run_mismatch", message, field, path=entry.path)
    _check_fields(ctx, bound)


def _check_fields(ctx: Context, bound: dict[str, str]) -> None:
    """A path without an entry is only a claim."""
    for kind, field in PATH_FIELDS.items():
        path = getattr(ctx.card, field)
        if path == bound.get(kind, ""):
            continue
        if path and not resolve_input(path, ctx.card_dir).exists():
            ctx.book.fail(Gate.EVIDENCE, f"missing_{field}_file", f"{path} does not exist", field, path=path)
        else:
            message = f"{field} {path or '(empty)'} is not the bound file {bound.get(kind) or '(none)'}; attach it"
            ctx.book.fail(Gate.EVIDENCE, "evidence_unbound", message, field, path=path)
    for path in ctx.card.outputs:
        if not located(path, ctx.card_dir).exists():
            ctx.book.warn(Gate.EVIDENCE, "missing_outputs_file", f"output {path} does not exist", "outputs", path=path)
