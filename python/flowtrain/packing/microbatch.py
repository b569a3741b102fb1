"""The place of a batch in its step, and the weights of its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowtrain.packing.slots import PackingError
from flowtrain.packing.steps import FormedStep
from flowtrain_core.packing import Assignment


@dataclass(frozen=True, kw_only=True, slots=True)
class Microbatch:
    """The batch of one rank in one slot.

    Attributes:
        epoch: Number of the epoch, from 0.
        step: Number of the step in its epoch, from 0.
        index: Number of the microbatch in its step, from 0.
        samples: Its samples: indices of a map-style data set, or positions in a stream.
        targets: Target tokens of these samples, or None if they are not known.
        step_targets: Target tokens of the whole step, over all ranks, or None.
        filler: Whether the slot is empty on this rank. The batch is then the shortest sample of the
            step (with a target, if one has any), so that ranks still meet. This sample is also in
            another microbatch, so the weights here are 0.
        plan: The schedule of the whole step, with its bound, gap and ratios.
        place: The place after the microbatch, from which the loader can continue.
    """

    epoch: int
    step: int
    index: int
    samples: tuple[int, ...]
    targets: int | None
    step_targets: int | None
    filler: bool
    plan: Assignment
    place: dict[str, Any]

    @property
    def ends_step(self) -> bool:
        """Whether the optimizer should step after this microbatch."""
        return self.index + 1 == self.plan.microbatches

    @property
    def sum_weight(self) -> float:
        """Factor of a loss that is a *sum* over target tokens: ranks / step_targets.

        Gradients with this weight, accumulated over microbatches and averaged over ranks (as DDP
        and FSDP do), are those of the mean over all target tokens of the step.

        Raises:
            ValueError: Target tokens are not known.
        """
        _, whole = self._targets()
        return 0.0 if self.filler or not whole else self.plan.ranks / whole

    @property
    def mean_weight(self) -> float:
        """Factor of a loss that is a *mean* over this microbatch's target tokens.

        Raises:
            ValueError: Target tokens are not known.
        """
        mine, _ = self._targets()
        return self.sum_weight * mine

    def _targets(self) -> tuple[int, int]:
        if self.targets is None or self.step_targets is None:
            raise ValueError(
                f"step {self.step}: the loss of a microbatch has no weight if its target tokens "
                "are not known; give targets= to the loader"
            )
        return self.targets, self.step_targets


def microbatches_of(
    step: FormedStep, *, rank: int, before: dict[str, Any], after: dict[str, Any]
) -> list[Microbatch]:
    """The microbatches of one rank in a step, from a place on. None of them is empty.

    Args:
        step: The step.
        rank: Data-parallel rank.
        before: The place in the step, with the numbers of the `epoch`, the `step` and the first
            `microbatch`, and the `checksum` of a step that had begun.
        after: The place after the step.

    Raises:
        PackingError: The step differs from the one that had begun: samples would be repeated or
            omitted.
    """
    targets, checksum = step.targets, step.checksum()
    if before["microbatch"] and before.get("checksum") != checksum:
        raise PackingError(
            f"step {before['step']} of epoch {before['epoch']}: it had begun when the state was "
            "saved, and has other samples, sizes or costs now, or was formed by another version of "
            "FlowTrain; restore the data and the version, or use a state from the end of a step"
        )
    made = []
    for index, places in enumerate(step.places(rank)):
        if index < before["microbatch"]:
            continue
        last = index + 1 == step.plan.microbatches
        filler = not places
        places = places or [step.lightest]
        made.append(
            Microbatch(
                epoch=before["epoch"],
                step=before["step"],
                index=index,
                samples=tuple(step.keys[places].tolist()),
                targets=None if targets is None else int(targets[places].sum()),
                step_targets=(None if targets is None else int(targets[step.plan.slot >= 0].sum())),
                filler=filler,
                plan=step.plan,
                place=after if last else {**before, "microbatch": index + 1, "checksum": checksum},
            )
        )
    return made
