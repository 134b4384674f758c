"""bridge/routing."""
