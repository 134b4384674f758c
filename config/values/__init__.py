"""config/values."""
