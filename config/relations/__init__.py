"""config/relations."""
