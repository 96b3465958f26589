"""The simulation: patients, problems, candidates, legality, transitions, observations, rewards, checks against cheating.

Pure Python over `polyguard.knowledge`; no torch, no pydantic, no clock and no global state. What OpenEnv needs around it is in
`polyguard.server`.
"""
