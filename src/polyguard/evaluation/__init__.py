"""Judging policies: the same scenarios for each, intervals over clusters of scenarios, paired differences, and reports."""
