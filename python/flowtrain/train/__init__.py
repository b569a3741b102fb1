"""Training by encoder and backbone ranks that exchange records through the pool."""
