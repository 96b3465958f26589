"""The ground floor: errors, canonical JSON and digests, ids, clock, atomic files, process identity, settings.

Standard library only. Nothing here knows what a run, a model or a dataset is.
"""
