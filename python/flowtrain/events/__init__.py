"""Events: one record for each thing that a rank has done, in a file that survives its death."""

from flowtrain.events.accounts import Account, read_accounts, read_memory, read_shares
from flowtrain.events.clock import clock_offset_ns
from flowtrain.events.codes import (
    ACTIVITIES,
    ACTIVITY_OF,
    ACTIVITY_OF_MODULE,
    KINDS,
    MEMORY,
    MODULES,
    TRACKS,
    WAITS,
    WORK,
    MemoryKind,
    Wait,
    busy,
)
from flowtrain.events.file import (
    FOLDER,
    Attempt,
    EventFile,
    EventsError,
    RankEvents,
    next_attempt,
    path_of,
    read_events,
    read_run,
)
from flowtrain.events.log import EventLog

__all__ = [
    "ACTIVITIES",
    "ACTIVITY_OF",
    "ACTIVITY_OF_MODULE",
    "FOLDER",
    "KINDS",
    "MEMORY",
    "MODULES",
    "TRACKS",
    "WAITS",
    "WORK",
    "Account",
    "Attempt",
    "EventFile",
    "EventLog",
    "EventsError",
    "MemoryKind",
    "RankEvents",
    "Wait",
    "busy",
    "clock_offset_ns",
    "next_attempt",
    "path_of",
    "read_accounts",
    "read_events",
    "read_memory",
    "read_run",
    "read_shares",
]
