"""`python -m bashgym.training.describe STRATEGY`: the arguments of the installed TRL config class, as JSON on stdout."""

from __future__ import annotations

import dataclasses
import json
import sys


def config_fields(strategy: str) -> dict[str, str]:
    """Argument name → type as written in the class."""
    import trl

    names = {"sft": "SFTConfig", "dpo": "DPOConfig", "grpo": "GRPOConfig", "rlvr": "GRPOConfig"}
    cls = getattr(trl, names.get(strategy, "SFTConfig"))
    return {field.name: str(field.type) for field in dataclasses.fields(cls) if field.init}


if __name__ == "__main__":
    json.dump(config_fields(sys.argv[1]), sys.stdout)
