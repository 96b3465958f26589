"""Speed, measured side by side in one run against what a user would otherwise pick. `make bench` writes RESULTS.md.

Nothing here is a test: figures move with the machine, the ratios between neighbours less so.
"""
