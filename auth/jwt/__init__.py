"""auth/jwt."""
