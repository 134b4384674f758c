"""gateway/components."""
