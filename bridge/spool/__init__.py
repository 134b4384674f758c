"""bridge/spool."""
