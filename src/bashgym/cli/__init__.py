"""The command line. stdout is data, stderr is status; every command is one function that returns a `Reply`.

No logic of its own: commands read flags, call a service and show what it says.
"""
