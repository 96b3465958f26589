"""`python -m bashgym.training.describe STRATEGY`: what the installed TRL and Transformers accept, as JSON on stdout."""

from __future__ import annotations

import dataclasses
import json
import sys

from bashgym.methods.trl_names import CONFIG_CLASS


def accepted(strategy: str) -> dict[str, list[str]]:
    """{arguments: of the strategy's TRL config class, optimizers: names that `optim` may have}."""
    import trl
    from transformers.training_args import OptimizerNames

    fields = dataclasses.fields(getattr(trl, CONFIG_CLASS[strategy]))
    return {
        "arguments": [field.name for field in fields if field.init],
        "optimizers": [name.value for name in OptimizerNames],
    }


if __name__ == "__main__":
    json.dump(accepted(sys.argv[1]), sys.stdout)
