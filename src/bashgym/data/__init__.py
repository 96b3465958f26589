"""Datasets: reading, recognising, checking, tokenising. No torch, no transformers, no network.

What training will see is what this package says: the trainer is fed by `tokenization`, the preflight counts the same
tokens, and the preview colours the same mask. Nothing here knows about runs or models beyond a tokenizer folder.
"""
