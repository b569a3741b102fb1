"""Planted faults: each breaks one promise, so that a test can see the promise being checked.

They replace methods of the production classes in one process, which therefore need no hooks.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flowtrain.config.schema import ConfigError
from flowtrain.plan import Document, StepPlan
from flowtrain.train.backbone import BackboneRank
from flowtrain.train.checkpoint import Checkpoints
from flowtrain.train.encoder import EncoderRank
from flowtrain.train.records import RecordKey, RecordReceiver
from flowtrain.train.world import World

PAUSE_S = 5.0


def _drop_gradient() -> None:
    """The gradient of one record of the second step is lost."""
    gather = RecordReceiver.gather

    def lossy(self: RecordReceiver, out: torch.Tensor, *, step: int, item: int) -> RecordKey:
        key = gather(self, out, step=step, item=item)
        if self.inbox.startswith("encoder") and (step, item) == (1, 0):
            out.zero_()
        return key

    RecordReceiver.gather = lossy  # type: ignore[method-assign]


def _local_count() -> None:
    """The loss is divided by the rank's own target tokens, as many loops do."""
    slot = BackboneRank._slot

    def local(
        self: BackboneRank, plan: StepPlan, number: int, documents: Sequence[Document], ages: Any
    ) -> tuple[float, int, int]:
        from dataclasses import replace

        mine = sum(
            d.num_targets for _, docs in plan.documents_of(self._seat.world.rank) for d in docs
        )
        return slot(self, replace(plan, num_targets=mine), number, documents, ages)

    BackboneRank._slot = local  # type: ignore[method-assign,assignment]


def _leak_documents() -> None:
    """Documents of a microbatch see each other."""
    batch = BackboneRank._batch

    def leaky(self: BackboneRank, *arguments: Any) -> Any:
        from dataclasses import replace

        packed = batch(self, *arguments)
        return replace(packed, doc_lengths=[sum(packed.doc_lengths)])

    BackboneRank._batch = leaky  # type: ignore[method-assign,assignment]


def _skip_tap() -> None:
    """The first deepstack tap does not reach the backbone."""
    gather = BackboneRank._gather

    def without_tap(self: BackboneRank, *arguments: Any) -> Any:
        features, skipped = gather(self, *arguments)
        if features is not None:
            width = self._seat.adapter.config.text_config.hidden_size
            with torch.no_grad():
                features[:, width : 2 * width] = 0
        return features, skipped

    BackboneRank._gather = without_tap  # type: ignore[method-assign,assignment]


def _stale_weights() -> None:
    """From the second step on, the encoder encodes with the weights it started from."""
    encode = EncoderRank._encode
    first: list[torch.Tensor] = []

    def stale(self: EncoderRank, step: int, item: Any, *, with_graph: bool) -> Any:
        parameters = list(self._module.module.parameters())
        if not first:
            first.extend(p.detach().clone() for p in parameters)
        today = [p.data for p in parameters]
        for parameter, old in zip(parameters, first, strict=True):
            parameter.data = old
        rows = encode(self, step, item, with_graph=with_graph)
        for parameter, data in zip(parameters, today, strict=True):
            parameter.data = data
        return rows

    EncoderRank._encode = stale  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "drop_gradient": _drop_gradient,
    "local_count": _local_count,
    "leak_documents": _leak_documents,
    "skip_tap": _skip_tap,
    "stale_weights": _stale_weights,
}


def _halt() -> None:
    """This process stops before it joins the gradient reduction of its third step."""
    _before(World, "sum_gradients", 3, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def _pause() -> None:
    """This backbone rank sleeps before a slot, a checkpoint and a reduction."""
    _before(BackboneRank, "_slot", 2, lambda: time.sleep(PAUSE_S))
    _before(Checkpoints, "after", 2, lambda: time.sleep(PAUSE_S))
    _before(World, "sum_gradients", 3, lambda: time.sleep(PAUSE_S))


def _before(kind: type, method: str, count: int, act: Callable[[], None]) -> None:
    """Act before the call of a method that makes it so many."""
    plain = getattr(kind, method)
    calls = 0

    def acting(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            act()
        return plain(*arguments, **named)

    setattr(kind, method, acting)


# Of one rank, as `<fault>:<rank>`.
RANK_FAULTS: dict[str, Callable[[], None]] = {"halt": _halt, "pause": _pause}


def check(name: str) -> None:
    """Refuse a name that `plant` does not know.

    Raises:
        ConfigError: There is no such fault.
    """
    kind, _, rank = name.partition(":")
    if name not in FAULTS and not (rank and kind in RANK_FAULTS):
        known = [*FAULTS, *(f"{kind}:<rank>" for kind in RANK_FAULTS)]
        raise ConfigError(f"debug.fault={name}: there is no such fault; choose from {known}")


def plant(name: str, *, label: str) -> None:
    """Break this process in one way.

    Args:
        name: A key of `FAULTS`, for every rank, or `<key of RANK_FAULTS>:<rank>`, for that one.
        label: This rank's name.

    Raises:
        ConfigError: There is no such fault.
    """
    check(name)
    kind, _, rank = name.partition(":")
    if name in FAULTS:
        FAULTS[name]()
    elif rank == label:
        RANK_FAULTS[kind]()
