"""`python -m bashgym.training.probe MODEL_DIR BATCH LENGTH OUT.json`: a few real optimizer steps, timed and weighed.

Full fine-tuning steps on random tokens: forward, backward, AdamW. Memory is the peak of this process (or device).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from bashgym.core.files import atomic_write_json
from bashgym.training.callbacks import peak_memory_gb
from bashgym.training.load import choose_dtype, load_model

STEPS = 4


def main(folder: Path, rows: int, length: int, target: Path) -> None:
    """Writes {peak_memory_gb, seconds_per_step, tokens_per_second, n_parameters, rows, length, dtype, device}."""
    torch.manual_seed(0)
    dtype = choose_dtype("auto")
    model = load_model(folder, dtype=dtype)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens = torch.randint(0, model.config.vocab_size, (rows, length), device=model.device)
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    step_s = sorted(times[1:])[len(times[1:]) // 2]  # the first one pays for warm-up
    facts = {
        "peak_memory_gb": peak_memory_gb(),
        "seconds_per_step": step_s,
        "tokens_per_second": rows * length / step_s,
        "n_parameters": sum(p.numel() for p in model.parameters()),
        "rows": rows,
        "length": length,
        "dtype": str(dtype).removeprefix("torch."),
        "device": str(model.device),
    }
    atomic_write_json(target, facts)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
