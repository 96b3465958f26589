"""Typed read and write of a run directory: every file of it, its versions, its readers for growing files.

A run directory is readable without us: JSON and JSONL only. No knowledge of processes, databases or trainers.
"""
