"""From a model's name to a folder on disk with a measured identity. No torch: headers and digests only.

Names: `bashgym/...` (built here), a path, `run_...` (what a run made), or a Hub id that is already in the Hub cache.
"""
