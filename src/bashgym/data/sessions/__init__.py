"""From recorded agent sessions to session-distillation records, and from records to token ids. No torch."""
