"""State of a pool, for terminals and for monitoring; needs no torch."""
