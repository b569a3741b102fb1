"""Schedules steps: which sample goes into which microbatch of which rank.

from flowtrain_core.packing import schedule

plan = schedule(tokens, cost, ranks=8, microbatches=4, max_tokens=8192)
plan.slot, plan.rank     # of each sample
plan.gap                 # no schedule is better by more than this

NumPy is imported with this package, and not before.
"""

from flowtrain_core.packing.assignment import Assignment
from flowtrain_core.packing.interface import NoRoomError, schedule
from flowtrain_core.packing.packer import Packer
from flowtrain_core.packing.policies import POLICIES

__all__ = ["POLICIES", "Assignment", "NoRoomError", "Packer", "schedule"]
