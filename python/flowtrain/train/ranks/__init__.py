"""The process of a rank, its set-up, and the steps of encoder and backbone ranks."""
