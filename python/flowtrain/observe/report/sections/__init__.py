"""Sections of a report, each a function of its runs; this is their order."""

from collections.abc import Callable, Sequence

from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.answers import answers
from flowtrain.observe.report.sections.cached import cached
from flowtrain.observe.report.sections.course import course
from flowtrain.observe.report.sections.hosts import hosts
from flowtrain.observe.report.sections.layout import layout
from flowtrain.observe.report.sections.learning import learning
from flowtrain.observe.report.sections.packing import packing
from flowtrain.observe.report.sections.pool import pool
from flowtrain.observe.report.sections.speed import speed
from flowtrain.observe.report.sections.time import steps_in_time, time_of_ranks, waiting
from flowtrain.pages.parts import Section

SECTIONS: tuple[Callable[[Sequence[ReportedRun]], Section], ...] = (
    learning,
    answers,
    speed,
    time_of_ranks,
    waiting,
    steps_in_time,
    layout,
    packing,
    cached,
    pool,
    hosts,
    course,
)
