"""Reports of runs: pages with charts, each a single file that asks no network for anything."""

from flowtrain.observe.report.page import write_report

__all__ = ["write_report"]
