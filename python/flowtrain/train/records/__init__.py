"""Records: the rows that one module sends to the other, through the pool between processes."""
