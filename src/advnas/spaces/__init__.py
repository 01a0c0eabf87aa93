"""Search spaces by name."""
