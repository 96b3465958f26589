"""What a running sandbox uses in total, for limits that the kernel keeps only per process. Sampled, so an upper bound
in hindsight: a burst between two samples is seen at the next one."""

from __future__ import annotations

import os
from pathlib import Path

MAX_ENTRIES = 50_000
"""More files than this in a workspace count as a full disk."""


def memory_bytes(pid: int) -> int:
    """Resident bytes of `pid` and all its descendants; shared pages count once for each of them."""
    import psutil

    total = 0
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in family:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def disk_bytes(folder: Path) -> int:
    """Allocated bytes below `folder`, links not followed; beyond any limit if there are over `MAX_ENTRIES` entries."""
    total = entries = 0
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as listing:
                for entry in listing:
                    entries += 1
                    if entries > MAX_ENTRIES:
                        return 1 << 62
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue
    return total
