"""The HTTP API: thin routes over the services, behind one guard. Errors have the shape that the command line prints."""
