"""Schedules: what each rank does, as lists of actions that are printed, checked and executed."""

from flowtrain.schedule.action import KINDS, Action, Kind, ScheduleError, unit_of
from flowtrain.schedule.check import HighWater, Limits, check
from flowtrain.schedule.program import Program
from flowtrain.schedule.role import Role, roles, roles_of
from flowtrain.schedule.stages import evaluation, slots_of
from flowtrain.schedule.template import Template, template_of

__all__ = [
    "KINDS",
    "Action",
    "HighWater",
    "Kind",
    "Limits",
    "Program",
    "Role",
    "ScheduleError",
    "Template",
    "check",
    "evaluation",
    "roles",
    "roles_of",
    "slots_of",
    "template_of",
    "unit_of",
]
