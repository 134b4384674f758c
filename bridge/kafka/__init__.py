"""bridge/kafka."""
