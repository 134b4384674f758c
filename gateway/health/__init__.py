"""gateway/health."""
