"""`flow.layout: auto`: the layout of a run, chosen before its ranks start."""

from __future__ import annotations

import dataclasses
import os
import sys

from flowtrain.config.layout import RankLayout
from flowtrain.config.load import load
from flowtrain.config.schema import RunConfig


def with_layout(config: RunConfig, *, resume: bool) -> RunConfig:
    """The configuration with a layout in numbers.

    If the configuration has none, a resumed run keeps the layout in its folder; for another run
    one is chosen, and a line on standard error says why.
    """
    layout = config.flow.rank_layout
    if layout is None and resume:
        layout = _layout_of(config)
    if layout is None:
        ranks = min(len(os.sched_getaffinity(0)), config.train.global_batch)
        layout = RankLayout.colocated_on(ranks)
        print(f"flowtrain: layout {layout}", file=sys.stderr)
    return dataclasses.replace(config, flow=config.flow.with_layout(layout))


def _layout_of(config: RunConfig) -> RankLayout | None:
    """The layout of the run in the folder of a configuration, if there is one."""
    written = config.run / "config.yaml"
    return load(written).flow.rank_layout if written.exists() else None
