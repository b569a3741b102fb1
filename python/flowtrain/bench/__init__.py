"""Microbenchmarks of the core on the user's machine; they need only numpy."""
