"""The search over plans."""

from flowtrain.plan.search.interface import search

__all__ = ["search"]
