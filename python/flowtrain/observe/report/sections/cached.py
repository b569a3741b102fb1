"""How many images were neither decoded nor encoded, as their features were stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import said_of
from flowtrain.pages.charts.lines import Line, over_steps
from flowtrain.pages.parts import Figure, Section, percent


def cached(runs: Sequence[ReportedRun]) -> Section:
    """Hits of the cache of features, of runs that have one."""
    findings, lines = [], []
    for run in runs:
        if "cache_hits" not in run.timing:
            continue
        hits = run.timing["cache_hits"]
        images = hits + run.timing["cache_misses"]
        found, of_all = numpy.nansum(hits), numpy.nansum(images)
        share = percent(found / of_all) if of_all else "none"
        text = f"Features of {found:,.0f} of {of_all:,.0f} images ({share}) were in the cache."
        findings.append(said_of(run, runs, text))
        with numpy.errstate(invalid="ignore"):  # A step without images has no share.
            lines.append(Line(run.name, "hits", run.timing["step"], hits / images))
    figures = []
    if chart := over_steps(lines, "images found in the cache", percent=True):
        about = (
            "Images of a step whose features were read from flow.cache.path, of all its images. "
            "The others were decoded, encoded and stored."
        )
        figures.append(Figure("Hits of the cache", about, chart))
    return Section("Cached features", "docs/report.md#cached-features", findings, figures)
