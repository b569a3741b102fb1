"""Errors of passes of sharded modules to which another rank does not come."""

from __future__ import annotations

from flowtrain.schedule import Action
from flowtrain.steps import step_name
from flowtrain_core import FlowTrainError

# The text of gloo; torch has no type for it.
_TIMED_OUT = "Timed out waiting"


class LateRankError(FlowTrainError, TimeoutError):
    """A rank did not come to a pass that the ranks of a sharded module run together."""


def late_ranks_error(action: Action, cause: Exception, *, timeout_s: float) -> LateRankError | None:
    """The error of an action in which a collective has timed out; None for another cause."""
    if _TIMED_OUT not in str(cause):
        return None
    return LateRankError(
        f"{step_name(action.step)}, '{action}': other {action.module} ranks did not come to this "
        f"pass within flow.timeout_s={timeout_s:g} s; if they are only slow, as in a "
        "first compilation, raise flow.timeout_s"
    )
