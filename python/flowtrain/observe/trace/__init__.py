"""Timelines of runs, for Perfetto: Chrome's trace format, made of the events of their ranks."""

from flowtrain.observe.trace.timeline import write_trace

__all__ = ["write_trace"]
