"""What a rank reads of its samples: sizes, tokens, and pixels."""
