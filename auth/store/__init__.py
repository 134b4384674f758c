"""auth/store."""
