"""Encoder rank: images in, records out, gradients back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flowtrain.plan import EncoderItem, SpaceNeed, StepPlan
from flowtrain.train.control.close import Report
from flowtrain.train.input.prefetch import Prefetch, Request
from flowtrain.train.ranks.context import (
    Delays,
    Module,
    Seat,
    build_closing,
    close_step,
    seed_dropout,
)
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain_core.edges import Explanation


class Stash:
    """Weights of the last `depth` steps, for the gradients of records that they made."""

    def __init__(self, module: torch.nn.Module, depth: int) -> None:
        self._module = module
        self._depth = depth
        self._kept: dict[int, list[torch.Tensor]] = {}

    def keep(self, version: int) -> None:
        """Remember today's weights under their version, and forget the oldest."""
        if self._depth and version not in self._kept:
            self._kept[version] = [p.detach().clone() for p in self._module.parameters()]
            self._kept.pop(version - self._depth - 1, None)

    @contextmanager
    def recalled(self, version: int) -> Iterator[None]:
        """Within the block the module has the weights of that version."""
        parameters = list(self._module.parameters())
        today = [p.data for p in parameters]
        for parameter, old in zip(parameters, self._kept[version], strict=True):
            parameter.data = old
        try:
            yield
        finally:
            for parameter, data in zip(parameters, today, strict=True):
                parameter.data = data


class EncoderRank:
    """Carries out the planned items of one encoder rank.

    Step s runs F(s + k), B(s), close(s), with k = 0 in `strict`. With k = 0 the graph of each
    item is held until its gradient arrives; with k > 0 it is recomputed under the weights that
    encoded it. In `frozen` there is F alone, as far ahead as plans and pool allow.

    Args:
        seat: This rank's place in the job.
        module: The encoder.
        prefetch: Pixels of planned images.
        checkpoints: Where the encoder world saves its part.
    """

    def __init__(
        self, seat: Seat, module: Module, prefetch: Prefetch, checkpoints: Checkpoints
    ) -> None:
        flow = seat.config.flow
        self._seat = seat
        self._module = module
        self._prefetch = prefetch
        self._checkpoints = checkpoints
        self._closing = build_closing(seat)
        self._delays = Delays(seat.config, seat.world.label)
        self._trains = flow.mode != "frozen"
        self._ahead = flow.staleness
        self._stash = Stash(module.module, flow.staleness)
        self._granted = SpaceNeed(activation=0, gradient=0)
        self._held: dict[tuple[int, int], torch.Tensor] = {}
        self._versions: dict[tuple[int, int], int] = {}
        self._waited_s = 0.0
        self._sender = seat.sender("backbone")
        self._gradients = seat.receiver()

    def run(self, first: int) -> None:
        """Run from step `first` to the end of the plans."""
        self._resize(self._seat.granted())
        plans = self._seat.plans
        forward = step = first
        error: Exception | None = None
        while True:
            while (
                error is None
                and forward <= step + self._ahead
                and plans.get(forward).kind == "train"
            ):
                try:
                    self._forward(plans.get(forward), version=step)
                    forward += 1
                except Exception as caught:
                    error = caught
            if error is not None and forward == step:
                raise error  # The steps before it are closed.
            plan = plans.get(step)
            if plan.kind == "end":
                self._sender.drain()
                self._gradients.drain()
                return
            if self._trains:
                self._backward(plan)
                self._close(plan)
            self._checkpoints.after(plan, self._module)
            plans.forget(step)
            self._prefetch.forget(step)
            step += 1

    def edges(self) -> list[Explanation]:
        """What path the activations took, and the gradients."""
        return self._sender.edges() + self._gradients.edges()

    def _forward(self, plan: StepPlan, *, version: int) -> None:
        self._prefetch.step(plan)
        self._resize(self._seat.check_space(plan, self._granted))
        hold = self._trains and self._ahead == 0
        self._stash.keep(version)
        for item in plan.items_of(self._seat.world.rank):
            self._delays.pause()
            rows, skipped = self._encode(plan.step, item, with_graph=hold)
            if hold:
                self._held[plan.step, item.index] = rows
            self._versions[plan.step, item.index] = version
            if skipped:
                self._seat.board.put(f"skipped/{plan.step}/{item.index}", skipped)
            self._sender.send(
                rows.detach(),
                reader=item.reader,
                step=plan.step,
                item=item.index,
                version=version,
                skipped=bool(skipped),
            )

    def _encode(
        self, step: int, item: EncoderItem, *, with_graph: bool
    ) -> tuple[torch.Tensor, list[int]]:
        """Rows of an item, shape [num_tokens, seam width], and samples with a skipped image."""
        seat = self._seat
        images = [self._prefetch.get(step, ("pixels", image)) for image in item.images]
        pixels = torch.cat([torch.from_numpy(image.pixels) for image in images])
        grids = torch.tensor([image.grid for image in item.images])
        # Recomputation draws the same dropout masks, and so does any layout.
        seed_dropout(seat.config.train.seed, step, item.index)
        with torch.set_grad_enabled(with_graph):
            rows = seat.adapter.encode(
                self._module.module,
                pixels.to(seat.world.device, seat.dtype),
                grids.to(seat.world.device),
            )
        if rows.shape[0] != item.num_tokens:
            raise ValueError(
                f"step {step}, item {item.index}: the encoder made {rows.shape[0]} rows where the "
                f"plan has {item.num_tokens}; merge_size of the model's image processor must be "
                "the spatial_merge_size of its configuration"
            )
        read = zip(item.images, images, strict=True)
        skipped = {planned.sample for planned, image in read if image.skipped}
        return rows, sorted(skipped)

    def _backward(self, plan: StepPlan) -> None:
        for item in plan.items_of(self._seat.world.rank):
            self._delays.pause()
            gradient = torch.empty(
                (item.num_tokens, self._seat.adapter.seam_width),
                dtype=self._seat.dtype,
                device=self._seat.world.device,
            )
            self._gradients.gather(gradient, step=plan.step, item=item.index)
            version = self._versions.pop((plan.step, item.index))
            if self._ahead == 0:
                self._held.pop((plan.step, item.index)).backward(gradient)
                continue
            with self._stash.recalled(version):
                rows, _ = self._encode(plan.step, item, with_graph=True)
                rows.backward(gradient)

    def _close(self, plan: StepPlan) -> None:
        world = self._seat.world
        if plan.items:
            world.sum_gradients(self._module.trained)
        wait_s = self._sender.wait_s + self._gradients.wait_s
        [waited] = world.sum([wait_s - self._waited_s])
        self._waited_s = wait_s
        report = Report(
            norm=self._module.norm(),
            checksum=plan.checksum(),
            wait_s=waited / world.size,
            lr=self._module.lr,
        )
        close_step(self._seat, self._closing, self._module, plan, report)

    def _resize(self, granted: SpaceNeed) -> None:
        if granted.activation != self._sender.slabs:
            self._sender.reserve(granted.activation)
        self._granted = granted


def wanted_pixels(rank: int, plan: StepPlan) -> Iterator[Request]:
    """Images that one encoder rank reads for a plan."""
    for item in plan.items_of(rank):
        for image in item.images:
            yield "pixels", image
