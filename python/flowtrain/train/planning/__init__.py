"""Plans of the steps: samples, microbatches, and which rank computes which part."""
