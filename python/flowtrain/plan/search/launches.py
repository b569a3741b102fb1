"""Whether a model is so small that its operators take longer to launch than to compute."""

from __future__ import annotations

from flowtrain.cost.timing import DataSheetTiming
from flowtrain.plan.search.coupled import Priced

_LAUNCHES = 40
"""Operators of a layer in both passes, launched one by one from Python: an assumption."""
_LAUNCH_S = 5e-6
"""Seconds to launch one: an assumption; torch takes about so long on a processor of a server."""


def launch_warning(priced: Priced) -> str | None:
    """What to be warned of, or None if operators compute longer than they take to launch.

    Times of data sheets leave launches out. Measured times have them.

    Args:
        priced: The plan.
    """
    if not isinstance(priced.context.pool.timing, DataSheetTiming):
        return None
    cut = priced.cut
    number = max(range(len(cut.stages)), key=lambda stage: cut.stage_s[stage])
    layers = cut.stages[number].end - cut.stages[number].first
    computing_s, launching_s = cut.stage_s[number], layers * _LAUNCHES * _LAUNCH_S
    if computing_s >= launching_s:
        return None
    return (
        f"the model is small for this GPU: a microbatch computes for {1e3 * computing_s:.3g} ms, "
        f"and to launch the operators of {layers} layers takes about {1e3 * launching_s:.3g} ms, "
        "which is not in these times; measure them with flowtrain profile"
    )
