"""Environments: a task with files and a verifier, the sandbox that runs commands, episodes, and the terminal suite.

No model lives here: an episode is given its commands. Importing this package runs nothing and needs no bubblewrap.
"""
