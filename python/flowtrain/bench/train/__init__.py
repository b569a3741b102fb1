"""`flowtrain bench train`: speed of `flowtrain train` and of the plain loop that it replaces."""
