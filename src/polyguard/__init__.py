"""PolyGuard: a simulated medication-safety environment, the policies that act in it, and the loop that trains them.

RESEARCH AND SIMULATION ONLY. Not medical advice, not reviewed by a clinician, not for patient care.

An OpenEnv package of its own, built on bashgym: knowledge (tables and look-ups) < env (the simulation) < policies <
evaluation, training, loop (what trains and judges them) < api < cli. bashgym imports nothing from here. torch is imported
inside processes that train or generate, never by the environment, the API or the start of a command.
"""

__version__ = "0.1.0"

DISCLAIMER = "Research and simulation only: not medical advice, not reviewed by a clinician, not for patient care."
