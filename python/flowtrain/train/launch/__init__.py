"""Starts a run on this host, waits for its ranks, and writes its final model."""
