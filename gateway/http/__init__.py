"""gateway/http."""
