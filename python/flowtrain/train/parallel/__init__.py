"""Strategies: how the ranks of a module share its states, behind one interface."""
