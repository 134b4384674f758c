"""gateway/cli/access."""
