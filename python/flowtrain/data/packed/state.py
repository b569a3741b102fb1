"""Checks that a saved state belongs to a loader."""

from __future__ import annotations

from typing import Any

from flowtrain.packing import PackingError

_SAME_ARGUMENTS = (
    "give the loader the same arguments; only the number of ranks may change, if batch_size x "
    "microbatches x ranks (with max_age, microbatches x ranks) stays the same"
)


def check_state(state: dict[str, Any], *, order: dict[str, Any], plan: dict[str, Any]) -> None:
    """Check that a loader with this order and plan can continue from a state.

    Args:
        state: What `PackedLoader.state_dict` returned.
        order: What must be equal at the end of a step.
        plan: What must be equal as well within a step.

    Raises:
        PackingError: The state is incomplete, or has another order or plan.
    """
    if missing := sorted({"order", "place", "plan"} - state.keys()):
        raise PackingError(
            f"state: it has no {', '.join(missing)}; give what state_dict of a loader returned"
        )
    place = state["place"]
    _check_equal("order", state["order"], order, _SAME_ARGUMENTS)
    if place["microbatch"]:
        _check_equal(
            f"plan of step {place['step']}, which had begun",
            state["plan"],
            plan,
            "give the loader the same arguments, or a state from the end of a step",
        )


def _check_equal(what: str, saved: dict[str, Any], now: dict[str, Any], way_out: str) -> None:
    for name in now:
        if saved.get(name) != now[name]:
            raise PackingError(
                f"state: saved with {name}={saved.get(name)}, but this loader has {now[name]}, "
                f"which changes the {what}: samples would be repeated or omitted; {way_out}"
            )
