"""BashGym: plan, launch, watch, evaluate and promote LLM post-training runs with evidence that re-checks.

Nothing is imported here: `import bashgym` must cost nothing.
"""

__version__ = "0.1.0"
