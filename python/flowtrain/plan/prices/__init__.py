"""Times and memory of a module in a layout."""
