"""What each step is: its samples, its microbatches, and which rank computes what."""
