"""Puts a rank together from the configuration of its run, and runs it."""
