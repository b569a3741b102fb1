"""State of a run: module and optimizer, and on disk the logs, checkpoints and final model."""
