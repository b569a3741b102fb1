"""All that is compared with ours in lock-step: the policies, and the peers that are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from peers.limited import timed
from peers.schedulers import PEERS, Peer, load_peers

from flowtrain.workloads import Workload
from flowtrain_core.packing import POLICIES, Assignment, schedule
from packing.cases import OURS

# (work, shape, our plan) -> plan and milliseconds.
Contender = Callable[[Workload, dict[str, Any], Assignment], tuple[Assignment, float]]

_TWO_MODULES = ("omnibal", "dflop", "entrain", "flowtrain-rigid")


def contenders() -> tuple[dict[str, Contender], dict[str, str]]:
    """By name, and why the others are missing."""
    peers, missing = load_peers()
    found = {name: _policy(name) for name in POLICIES if name != OURS}
    return found | {name: _peer(peer, PEERS[name][1]) for name, peer in peers.items()}, missing


def _policy(name: str) -> Contender:
    def run(work: Workload, shape: dict[str, Any], like: Assignment) -> tuple[Assignment, float]:
        encoder = work.encoder_cost if name in _TWO_MODULES else None
        return timed(
            lambda: schedule(
                work.tokens, work.cost, encoder, policy=name, coupling="rigid", **shape
            )
        )

    return run


def _peer(peer: Peer, wall: bool) -> Contender:
    def run(work: Workload, shape: dict[str, Any], like: Assignment) -> tuple[Assignment, float]:
        call = peer(work.tokens, work.cost, *shape.values())
        parts, ms = timed(call.run, wall=wall)
        return _laid_out(call.bins(parts), like), ms

    return run


def _laid_out(bins: numpy.ndarray, like: Assignment) -> Assignment:
    """Bins judged by the same bound; more of them than asked for are more slots."""
    used = int(bins.max(initial=0)) + 1
    return Assignment(
        slot=(bins // like.ranks).astype(numpy.int32),
        rank=(bins % like.ranks).astype(numpy.int32),
        dropped=numpy.zeros(0, numpy.int32),
        ranks=like.ranks,
        microbatches=max(like.microbatches, -(-used // like.ranks)),
        max_tokens=like.max_tokens,
        objective=like.objective,
        bound=like.bound,
        tokens=like.tokens,
        cost=like.cost,
    )
