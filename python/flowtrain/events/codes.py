"""Codes in the records of events: kinds, waits and tracks, and the activity of each kind."""

from __future__ import annotations

from typing import Literal, get_args

from flowtrain.config.layout import ModuleName
from flowtrain.schedule import KINDS as ACTIONS
from flowtrain.schedule import Kind as ActionKind

MemoryKind = Literal["resident", "shared", "allocated", "reserved"]
"""Kinds of memory of a rank, in bytes. `resident`: its resident set, at most so far. `shared`: of
its resident set, memory that is shared with other processes, now. `allocated`, `reserved`: by torch
on its GPU, at most so far."""
MEMORY: tuple[MemoryKind, ...] = get_args(MemoryKind)

EventKind = (
    ActionKind | Literal["run", "plan", "pixels", "sums", "log", "planned", "answered"] | MemoryKind
)
"""Kinds of events: the actions of a schedule, and others. `run`: all steps of an attempt. `plan`: a
plan is taken. `pixels`: an image that no worker has read yet. `sums`: sums of gradients over ranks
complete. `log`: the logs of a step are written. `planned`: the planner makes a plan. `answered`: a
worker reads samples. Those of `MEMORY`: the memory of the rank at the end of a step."""
KINDS: tuple[EventKind, ...] = (
    *ACTIONS,
    "run",
    "plan",
    "pixels",
    "sums",
    "log",
    "planned",
    "answered",
    *MEMORY,
)

Wait = Literal["", "slab", "record", "ranks", "store"]
"""Reasons of waits: a free slab, a record of another rank, the others in a collective, or a
key of the job's store. Empty if it works."""
WAITS: tuple[Wait, ...] = get_args(Wait)

Track = Literal["actions", "waits", "planner", "workers", "memory"]
"""Where it happened. `actions` and `waits` are of the thread that executes the schedule: its
actions, with what is nested in them, and its waits. `planner` is a thread; `workers` are the
threads or processes that read samples, by the index of the event. `memory` has what takes no
time: bytes at the end of a step."""
TRACKS: tuple[Track, ...] = get_args(Track)

MODULES = ("", "encoder", "backbone")

Activity = Literal[
    "encode",
    "backbone",
    "optimizer",
    "reduce",
    "send",
    "receive",
    "load",
    "plan",
    "exchange",
    "log",
    "checkpoint",
    "other",
]
"""Kinds of activity, to which events are summed.

`encode`: forward and backward of the encoder. `backbone`: forward and backward of the backbone.
`optimizer`: norms, clipping and optimizer steps. `reduce`: sums of gradients. `send`, `receive`:
records through the pool. `load`: texts, and samples that are not read yet. `plan`: taking plans.
`exchange`: of reports. `log`, `checkpoint`. `other`: the rest.
"""
_WAIT = "wait_"
ACTIVITY_OF_MODULE: dict[ModuleName, Activity] = {"encoder": "encode", "backbone": "backbone"}
"""Forward and backward of each module."""
WORK: tuple[Activity, ...] = ("encode", "backbone", "optimizer")
"""Kinds of activity that a plain loop has, too."""
ACTIVITIES: tuple[str, ...] = (
    *get_args(Activity),
    *(_WAIT + activity for activity in get_args(Activity)),
)
"""All kinds of activity; `wait_` and one of these are waits for another rank in it, for example
`wait_send` for a free slab, `wait_receive` for a record, `wait_exchange` for the slower ranks."""

_ACTIVITY_OF: dict[EventKind, Activity] = {
    "load": "load",
    "encode": "encode",
    "put": "send",
    "get": "receive",
    "forward": "backbone",
    "backward": "backbone",
    "encoder_backward": "encode",
    "reduce": "reduce",
    "norm": "optimizer",
    "exchange": "exchange",
    "apply": "optimizer",
    "checkpoint": "checkpoint",
    "forget": "plan",
    "plan": "plan",
    "pixels": "load",
    "sums": "reduce",
    "log": "log",
}
ACTIVITY_OF: tuple[tuple[str, str], ...] = tuple(
    (activity, _WAIT + activity) for activity in (_ACTIVITY_OF.get(kind, "other") for kind in KINDS)
)
"""For the code of each kind: its activity, and that of a wait in it."""


def busy(seconds: dict[str, float]) -> float:
    """Share of the time in which a rank did what a plain loop does, too."""
    total = sum(seconds.values())
    return sum(seconds.get(kind, 0.0) for kind in WORK) / total if total else 0.0
