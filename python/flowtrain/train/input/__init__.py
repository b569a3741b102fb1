"""Reads of samples by a rank: sizes, tokens, and pixels."""
