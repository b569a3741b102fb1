"""Plans of a run: what is decided before it starts."""
