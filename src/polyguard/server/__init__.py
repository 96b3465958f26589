"""The OpenEnv server: one engine for each session, nothing shared between them."""
