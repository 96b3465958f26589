"""Evidence that re-checks: digest-bound files, the release gate, RunCards and model cards.

Owns the judgement whether a run may be promoted. Trains, scores and samples nothing.
"""
