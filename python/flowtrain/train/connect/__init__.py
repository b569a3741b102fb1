"""The flow in training loops of one's own: the backbone is the caller's, the encoder is apart."""
