"""The command line: faces without logic."""
