"""gateway/local/runtime."""
