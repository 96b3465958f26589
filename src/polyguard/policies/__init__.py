"""Who acts: from doing nothing to language models, all behind one interface (`polyguard.policies.base.Policy`).

Policies see observations only; `Expert` alone looks behind them, and says so. torch is imported by `local_model` inside its
constructor, aiohttp by `endpoint`, nothing heavy by anything else.
"""
