"""auth/rules."""
