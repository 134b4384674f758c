"""config/loading."""
