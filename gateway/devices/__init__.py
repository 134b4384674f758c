"""gateway/devices."""
