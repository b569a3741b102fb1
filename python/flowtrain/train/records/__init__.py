"""Records: the rows that one world sends to the other through the pool."""
