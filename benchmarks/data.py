"""Dataset validation, duplicates included, beside loading the same file with the datasets library."""

from __future__ import annotations

import json
from pathlib import Path

from bashgym.data.contracts import check_dataset
from benchmarks.measure import Result, seconds

ROWS = 200_000


def run(work: Path) -> list[Result]:
    """One quantity."""
    path = work / "big.jsonl"
    with path.open("w") as out:
        for i in range(ROWS):
            out.write(
                json.dumps(
                    {"messages": [{"role": "user", "content": f"q {i}"}, {"role": "assistant", "content": f"a {i}"}]}
                )
                + "\n"
            )
    ours = ROWS / seconds(lambda: check_dataset(path, "sft"), repeats=3)

    def load() -> None:
        from datasets import load_dataset

        load_dataset(
            "json", data_files=str(path), split="train", cache_dir=str(work / "cache"), download_mode="force_redownload"
        )

    load()
    theirs = ROWS / seconds(load, repeats=2)
    return [
        Result(
            "dataset validation with duplicates",
            ours,
            "rows/s",
            "≥ 300,000",
            "datasets.load_dataset, no checks",
            theirs,
            bigger_is_better=True,
        )
    ]
