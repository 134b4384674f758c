"""auth/logins."""
