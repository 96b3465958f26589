"""What teaches a model to act: corpora, BashGym runs of SFT and GRPO, merging, and a look at what was saved.

Trains through BashGym's runs only; torch is imported in the processes that those start, and in those that merge or generate.
"""
