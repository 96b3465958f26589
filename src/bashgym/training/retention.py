"""What is left of a finished run, the same for every strategy. Checkpoints go only after all else is saved and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bashgym.store.checkpoints import prune
from bashgym.training import merge, ranks
from bashgym.training.saving import put_in_place, write_verified

if TYPE_CHECKING:
    from bashgym.training.loop import Job

KEEPS_CHECKPOINTS = frozenset({"adapter_checkpoint", "full_run"})
SAVES_MERGED = frozenset({"deployable", "full_run"})


def finish(job: Job, trainer: Any, tokenizer: Any) -> None:
    """Saves final/ (and merged/), verifies, then prunes by the policy. Raises before anything is pruned."""
    policy = str(job.request["artifact_retention"])
    state = ranks.whole_state(trainer)
    if not ranks.is_first():
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    made = job.run.file(".final.partial")
    saved = write_verified(model, tokenizer, made, state)
    put_in_place(made, job.run.file("final"))
    job.run.append_event("final-saved", path="final", tensors=len(saved))
    if policy in SAVES_MERGED:
        merge.save_merged(job, tokenizer)
    if policy not in KEEPS_CHECKPOINTS:
        removed = prune(job.run.path, 0)
        job.run.append_event("checkpoints-pruned", removed=removed, policy=policy)
