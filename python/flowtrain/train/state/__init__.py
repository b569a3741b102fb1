"""What a run keeps on the disk: logs, checkpoints, and the final model."""
