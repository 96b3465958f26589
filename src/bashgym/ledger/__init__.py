"""The experiment ledger: one database that indexes runs and keeps what only it knows (decisions, events, results).

Owns the schema and its migrations, idempotent registration, the run status table, the metric store, the hash-chained
event log and the read side. Knows nothing of processes, trainers or the formats inside a run directory.
"""
