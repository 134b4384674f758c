"""gateway/cli/dead_letters."""
