"""Training: the flow protocol over two torch worlds that meet only in the pool."""
