"""gateway/base."""
