"""gateway/tools."""
