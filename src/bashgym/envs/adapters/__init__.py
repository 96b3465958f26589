"""Other projects' tasks as EnvironmentSpecs, and our environments in other projects' protocols.

One module per project. Nothing here runs a model; foreign packages are imported where they are used.
"""
