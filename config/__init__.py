"""Typed settings, their loading, and the root of the error tree."""
