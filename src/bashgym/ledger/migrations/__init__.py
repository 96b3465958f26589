"""Alembic migrations. A published version file is never edited; a change of schema is a new file."""
