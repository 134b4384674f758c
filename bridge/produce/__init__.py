"""bridge/produce."""
