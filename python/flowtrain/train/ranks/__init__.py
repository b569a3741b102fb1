"""What a rank does: the steps of encoder and backbone ranks."""
