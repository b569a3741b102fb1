"""Forms the steps of a training loop from a sequence of samples."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy

from flowtrain.packing.sizes import IntArray, Sizes, SizeSource
from flowtrain.packing.slots import PackingError, checked_int, fewest_slots
from flowtrain_core.packing import Assignment, NoRoomError, Packer, schedule
from flowtrain_core.packing.interface import Objective


@dataclass(frozen=True, kw_only=True, slots=True)
class StepShape:
    """Shape of a step: its bins, the samples that fill them, and the objective."""

    ranks: int
    """Data-parallel ranks."""
    max_tokens: int
    """Maximum tokens per microbatch."""
    microbatches: int | None = 1
    """Microbatches per rank and step; None takes the minimum that holds the step."""
    batch_size: int | None = None
    """Mean number of samples per microbatch: a step has this times ranks times microbatches (None
    counts as one). None if steps are filled by tokens."""
    objective: Objective = "lockstep"
    """As for `flowtrain_core.packing.schedule`."""
    max_age: int = 0
    """Maximum steps that a sample may wait; 0 forms exact batches."""
    window: float = 1.05
    """With max_age: samples to read before a step is formed, in multiples of the token capacity of
    a step."""
    drop_last: bool = False
    """Whether to drop the samples that do not fill the last step."""

    def __post_init__(self) -> None:
        for name in ("ranks", "max_tokens", "microbatches", "batch_size", "max_age"):
            value = getattr(self, name)
            if value is not None:
                minimum = 0 if name == "max_age" else 1
                # Converted to int, since states and checksums need Python's numbers.
                object.__setattr__(self, name, checked_int(value, name, minimum=minimum))
        try:
            object.__setattr__(self, "window", float(self.window))
        except (TypeError, ValueError):
            raise PackingError(f"window={self.window!r}: it must be a number") from None
        if not 1 <= self.window < math.inf:
            raise PackingError(f"window={self.window}: it must be at least 1 step, and finite")
        if self.objective not in get_args(Objective):
            choices = ", ".join(get_args(Objective))
            raise PackingError(f"objective '{self.objective}': choose from {choices}")
        if self.max_age == 0 and self.batch_size is None:
            raise PackingError(
                "batch_size=None: give the samples of a microbatch, or max_age of at least 1 to "
                "fill steps by tokens"
            )
        if self.max_age > 0 and (self.batch_size is not None or self.microbatches is None):
            raise PackingError(
                f"max_age={self.max_age} with batch_size={self.batch_size} and microbatches="
                f"{self.microbatches}: a stream fills steps by tokens; leave batch_size out and "
                "give microbatches"
            )

    @property
    def samples(self) -> int | None:
        """Samples per step; None if steps are filled by tokens."""
        if self.batch_size is None:
            return None
        return self.batch_size * self.ranks * (self.microbatches or 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class FormedStep:
    """The candidate samples of a step, and their slots and ranks.

    Attributes:
        keys: Keys of the samples, in the order of the plan's arrays, shape [num_samples].
        targets: Target tokens of each sample, shape [num_samples], or None.
        plan: Slot and rank of each sample; slot -1 means that it waits for a later step.
    """

    keys: IntArray
    targets: IntArray | None
    plan: Assignment

    @property
    def placed(self) -> list[int]:
        """Keys of the samples that this step contains."""
        return self.keys[self.plan.slot >= 0].tolist()

    def places(self, rank: int) -> list[list[int]]:
        """Indices into `keys` of the samples of one rank, per slot; a slot may be empty."""
        mine: list[list[int]] = [[] for _ in range(self.plan.microbatches)]
        for i in numpy.flatnonzero(self.plan.rank == rank).tolist():
            mine[self.plan.slot[i]].append(i)
        return mine

    def checksum(self, start: int = 0) -> int:
        """CRC-32 of the step's samples, sizes, shape and plan, continued from another checksum.

        Ranks compare it to check that they plan the same step. Keys differ between shuffles, sizes
        and costs between data sets and cost models.
        """
        crc = zlib.crc32(str(self.plan.checksum()).encode(), start)
        for values in (self.keys, self.targets):
            if values is not None:
                crc = zlib.crc32(numpy.ascontiguousarray(values).data, crc)
        return crc

    @property
    def lightest(self) -> int:
        """Index into `keys` of the placed sample with the fewest tokens.

        If a placed sample has a target, the result has one: a mean over no target is not a number,
        even times 0.
        """
        placed = numpy.flatnonzero(self.plan.slot >= 0)
        if self.targets is not None and self.targets[placed].any():
            placed = placed[self.targets[placed] > 0]
        return int(placed[self.plan.tokens[placed].argmin()])


class StepBuilder:
    """Forms steps from the samples of a source, one at a time.

    With `max_age`, samples may wait from step to step; they are its only state.
    """

    def __init__(self, shape: StepShape) -> None:
        self._shape = shape
        self._targets: dict[int, int] = {}
        self._packer: Packer | None = None
        if shape.max_age:
            self._packer = Packer(
                max_age=shape.max_age, microbatches=shape.microbatches, **self._options
            )

    def next(self, source: SizeSource) -> FormedStep | None:
        """The next step, or None if no sample is left.

        Raises:
            PackingError: The samples fit into no schedule.
        """
        if self._packer is None:
            return self._exact(source)
        return self._filled(self._packer, source)

    @property
    def waiting(self) -> list[list[Any]]:
        """The waiting samples as rows of plain numbers; the first number is the key."""
        return [] if self._packer is None else self._packer.state_dict()["waiting"]

    def load(self, waiting: list[list[Any]], sizes: Callable[[IntArray], Sizes]) -> None:
        """Restore the waiting samples; `sizes` returns the sizes of keys."""
        if self._packer is not None:
            self._packer.load_state_dict({"waiting": waiting})
            keys = numpy.array([row[0] for row in waiting], numpy.int64)
            self._note(keys, sizes(keys))

    @property
    def _options(self) -> dict[str, Any]:
        shape = self._shape
        return {
            "ranks": shape.ranks,
            "max_tokens": shape.max_tokens,
            "objective": shape.objective,
        }

    def _exact(self, source: SizeSource) -> FormedStep | None:
        shape = self._shape
        assert shape.samples is not None
        keys, sizes = source.take(shape.samples)
        if not len(keys) or (shape.drop_last and len(keys) != shape.samples):
            return None
        return FormedStep(keys=keys, targets=sizes.targets, plan=self._planned(sizes))

    def _planned(self, sizes: Sizes) -> Assignment:
        shape, slots = self._shape, self._shape.microbatches
        step = f"a step of {len(sizes)} samples with {int(sizes.tokens.sum())} tokens"
        try:
            if slots is None:
                return fewest_slots(sizes.tokens.tolist(), sizes.cost.tolist(), **self._options)
            return schedule(sizes.tokens, sizes.cost, microbatches=slots, **self._options)
        except NoRoomError as error:
            raise PackingError(
                f"no room for {step} in {shape.ranks} ranks x {slots} microbatches of max_tokens="
                f"{shape.max_tokens}; raise max_tokens or microbatches (of a Trainer: "
                "gradient_accumulation_steps), lower batch_size (per_device_train_batch_size), or "
                "let a PackedLoader use as many as a step needs by microbatches=None "
                f"({error})"
            ) from error
        except ValueError as error:
            raise PackingError(f"{step}: {error}") from error

    def _filled(self, packer: Packer, source: SizeSource) -> FormedStep | None:
        shape = self._shape
        assert shape.microbatches is not None
        step_tokens = shape.ranks * shape.microbatches * shape.max_tokens
        # An int, since tokens may exceed the integers that a double represents.
        window = math.ceil(shape.window * step_tokens)
        tokens = packer.waiting_tokens
        more = True
        while more and tokens < window:
            # No sample exceeds the cap, so the window needs at least this many.
            count = -(-(window - tokens) // shape.max_tokens)
            keys, sizes = source.take(count)
            self._note(keys, sizes)
            for row in zip(keys.tolist(), sizes.tokens.tolist(), sizes.cost.tolist(), strict=True):
                packer.add(*row)
            tokens += int(sizes.tokens.sum())
            more = len(keys) == count
        if not len(packer) or (shape.drop_last and tokens < step_tokens):
            return None
        try:
            names, plan = packer.step()
        except ValueError as error:
            raise PackingError(f"a step with max_age={shape.max_age}: {error}") from error
        targets = None
        if self._targets:
            targets = numpy.array([self._targets[key] for key in names], numpy.int64)
        step = FormedStep(keys=numpy.array(names, numpy.int64), targets=targets, plan=plan)
        for key in step.placed:
            self._targets.pop(key, None)
        return step

    def _note(self, keys: IntArray, sizes: Sizes) -> None:
        if sizes.targets is not None:
            self._targets.update(zip(keys.tolist(), sizes.targets.tolist(), strict=True))
