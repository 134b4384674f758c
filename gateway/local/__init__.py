"""gateway/local."""
