"""Evaluations: suites, scoring, paired statistics and their reports.

Text is generated in a process of its own (`bashgym.inference`); nothing here imports torch.
"""
