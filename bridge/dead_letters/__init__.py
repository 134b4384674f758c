"""bridge/dead_letters."""
