"""gateway/worker."""
