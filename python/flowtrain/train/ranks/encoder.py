"""Encoder rank: encodes images, sends records, and receives their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from flowtrain.steps import EncoderItem, SpaceNeed, StepPlan
from flowtrain.train.control.close import StepReport
from flowtrain.train.input.prefetch import Prefetch, Request
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.step import Delays, build_close, close_step, seed_dropout
from flowtrain.train.ranks.weight_stash import WeightStash
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain.train.state.module import Module
from flowtrain_core.edges import Explanation


class EncoderRank:
    """Executes the planned items of one encoder rank.

    Step s runs F(s + k), B(s), close(s), where F is the forward and B the backward of a step. In
    `strict`, k is 0, and the graph of each item is kept until its gradient arrives. In `bounded`,
    k is `flow.staleness`, and the graph is recomputed under the weights that encoded the item. In
    `frozen` there is F alone, as far ahead as plans and pool allow.

    Args:
        context: Configuration, connections and services of this rank.
        module: The encoder.
        prefetch: Reads of the planned images.
        checkpoints: Saves the encoder's part of the checkpoints.
    """

    def __init__(
        self, context: RankContext, module: Module, prefetch: Prefetch, checkpoints: Checkpoints
    ) -> None:
        flow = context.config.flow
        self._context = context
        self._module = module
        self._prefetch = prefetch
        self._checkpoints = checkpoints
        self._close_exchange = build_close(context)
        self._delays = Delays(context.config, context.world.label)
        self._trains = flow.mode != "frozen"
        self._ahead = flow.staleness
        self._stash = WeightStash(module.module, flow.staleness)
        self._sizes = SpaceNeed(activation=0, gradient=0)
        self._graphs: dict[tuple[int, int], torch.Tensor] = {}
        self._versions: dict[tuple[int, int], int] = {}
        self._waited_s = 0.0
        self._records = context.sender("backbone")
        self._gradients = context.receiver()

    def run(self, first: int) -> None:
        """Run from step `first` to the end of the plans."""
        self._resize(self._context.segments.initial(self._context.plans.first_need()))
        plans = self._context.plans
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
                raise error  # All steps before it are closed.
            plan = plans.get(step)
            if plan.kind == "end":
                self._records.drain()
                self._gradients.drain()
                return
            if self._trains:
                self._backward(plan)
                self._close(plan)
            self._checkpoints.save_if_due(plan, self._module)
            plans.forget(step)
            self._prefetch.forget(step)
            step += 1

    def edges(self) -> list[Explanation]:
        """Edges of the activations and of the gradients."""
        return self._records.edges() + self._gradients.edges()

    def _forward(self, plan: StepPlan, *, version: int) -> None:
        self._prefetch.start(plan)
        self._resize(self._context.segments.sizes_for(plan, self._sizes))
        keep_graph = self._trains and self._ahead == 0
        self._stash.save(version)
        for item in plan.items_of(self._context.world.rank):
            self._delays.pause()
            rows, skipped = self._encode(plan.step, item, with_graph=keep_graph)
            if keep_graph:
                self._graphs[plan.step, item.index] = rows
            self._versions[plan.step, item.index] = version
            if skipped:
                self._context.store.put(f"skipped/{plan.step}/{item.index}", skipped)
            self._records.send(
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
        """Encode an item.

        Returns:
            Rows, shape [num_tokens, seam width], and the samples with a skipped image.
        """
        context = self._context
        images = [self._prefetch.get(step, ("pixels", image)) for image in item.images]
        pixels = torch.cat([torch.from_numpy(image.pixels) for image in images])
        grids = torch.tensor([image.grid for image in item.images])
        # Recomputation and other layouts draw the same dropout masks.
        seed_dropout(context.config.train.seed, step, item.index)
        with torch.set_grad_enabled(with_graph):
            rows = context.adapter.encode(
                self._module.module,
                pixels.to(context.world.device, context.dtype),
                grids.to(context.world.device),
            )
        if rows.shape[0] != item.num_tokens:
            raise ValueError(
                f"step {step}, item {item.index}: the encoder made {rows.shape[0]} rows where the "
                f"plan has {item.num_tokens}; merge_size of the model's image processor must equal "
                "spatial_merge_size of its configuration"
            )
        read = zip(item.images, images, strict=True)
        skipped = {planned.sample for planned, image in read if image.skipped}
        return rows, sorted(skipped)

    def _backward(self, plan: StepPlan) -> None:
        for item in plan.items_of(self._context.world.rank):
            self._delays.pause()
            gradient = torch.empty(
                (item.num_tokens, self._context.adapter.seam_width),
                dtype=self._context.dtype,
                device=self._context.world.device,
            )
            self._gradients.gather(gradient, step=plan.step, item=item.index)
            version = self._versions.pop((plan.step, item.index))
            if self._ahead == 0:
                self._graphs.pop((plan.step, item.index)).backward(gradient)
                continue
            with self._stash.restored(version):
                rows, _ = self._encode(plan.step, item, with_graph=True)
                rows.backward(gradient)

    def _close(self, plan: StepPlan) -> None:
        world = self._context.world
        if plan.items:
            world.sum_gradients(self._module.trainable)
        wait_s = self._records.wait_s + self._gradients.wait_s
        [waited] = world.sum([wait_s - self._waited_s])
        self._waited_s = wait_s
        report = StepReport(
            norm=self._module.norm(),
            checksum=plan.checksum(),
            wait_s=waited / world.size,
            lr=self._module.lr,
        )
        close_step(self._context, self._close_exchange, self._module, plan, report)

    def _resize(self, sizes: SpaceNeed) -> None:
        if sizes.activation != self._records.slabs:
            self._records.reserve(sizes.activation)
        self._sizes = sizes


def pixel_requests(rank: int, plan: StepPlan) -> Iterator[Request]:
    """Images that an encoder rank reads for a plan."""
    for item in plan.items_of(rank):
        for image in item.images:
            yield "pixels", image
