"""What a pool tells of itself, for people and for monitoring; it needs no torch."""
