"""The encoder's part of a rank: encodes images, sends records, and receives their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from flowtrain.steps import EncoderItem, SpaceNeed, StepPlan, step_name
from flowtrain.train.input.prefetch import Prefetch, Request
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.step import Delays, inference, seed_dropout
from flowtrain.train.ranks.weight_stash import WeightStash
from flowtrain.train.records.receiver import RecordReceiver
from flowtrain.train.records.sender import RecordSender
from flowtrain.train.state.module import Module
from flowtrain_core.edges import Explanation


class EncoderPart:
    """Executes the planned items of one rank.

    The graph of each item is kept until its gradient arrives or, with `flow.recompute`, made again
    under the weights that encoded the item.

    Args:
        context: Configuration, connections and services of this rank.
        module: The encoder.
        prefetch: Reads of the planned images, for each kind of plan.
        records: Sends the rows of the items.
        gradients: Receives the gradients of the rows.
    """

    def __init__(
        self,
        context: RankContext,
        module: Module,
        prefetch: Mapping[str, Prefetch],
        *,
        records: RecordSender,
        gradients: RecordReceiver,
    ) -> None:
        flow = context.config.flow
        self.module = module
        self.trains = flow.mode != "frozen"
        self._context = context
        self._prefetch = prefetch
        self._records = records
        self._gradients = gradients
        self._delays = Delays(context.config, f"encoder.{context.world.rank}")
        self._keeps_graphs = self.trains and not flow.recompute
        self._stash = WeightStash(module.parameters, flow.staleness)
        self._graphs: dict[tuple[int, int], torch.Tensor] = {}
        self._versions: dict[tuple[int, int], int] = {}

    def read(self, plan: StepPlan) -> None:
        """Begin to read the images of a step, and of the next one if it is planned already."""
        self._prefetch[plan.kind].start(plan)

    def forward(self, plan: StepPlan, *, version: int) -> None:
        """Encode the items of a step, after `read`, and send their records.

        Args:
            plan: The step.
            version: Step whose close gives the next weights: the present ones have this version.
        """
        self._stash.save(version)
        for item in plan.items_of(self._context.world.rank):
            self._delays.pause()
            with self._stash.in_graphs(version):
                rows, skipped = self._encode(plan, item, with_graph=self._keeps_graphs)
            if self._keeps_graphs:
                self._graphs[plan.step, item.index] = rows
            self._versions[plan.step, item.index] = version
            self._send(plan, item, rows.detach(), skipped, version)

    def evaluate(self, plan: StepPlan, *, version: int) -> None:
        """Encode the items of a batch of an evaluation, after `read`, and send their records.

        Args:
            plan: The batch.
            version: As for `forward`.
        """
        with inference(self.module.module):
            for item in plan.items_of(self._context.world.rank):
                self._delays.pause()
                rows, skipped = self._encode(plan, item, with_graph=False)
                self._send(plan, item, rows, skipped, version)

    def backward(self, plan: StepPlan) -> None:
        """Receive the gradients of a step, in planned order, and run the backward of its items.

        The sums over the ranks start during the last backward.
        """
        items = plan.items_of(self._context.world.rank)
        for item in items:
            self._delays.pause()
            if item is items[-1]:
                self.module.announce_last_backward()
            gradient = torch.empty(
                (item.num_rows, self._context.family.row_width),
                dtype=self._context.dtype,
                device=self._context.world.device,
            )
            self._gradients.gather(gradient, step=plan.step, item=item.index)
            version = self._versions.pop((plan.step, item.index))
            if self._keeps_graphs:
                self._graphs.pop((plan.step, item.index)).backward(gradient)
                continue
            with self._stash.restored(version):
                rows, _ = self._encode(plan, item, with_graph=True)
                rows.backward(gradient)
        if plan.items:
            self.module.start_sums()

    def forget(self, plan: StepPlan) -> None:
        """Drop the images of a step."""
        self._prefetch[plan.kind].forget(plan.step)

    def resize(self, sizes: SpaceNeed) -> None:
        """Set the slabs of the segment for records."""
        if sizes.activation != self._records.slabs:
            self._records.reserve(sizes.activation)

    def drain(self) -> None:
        """Wait until all copies to and from the pool are complete."""
        self._records.drain()
        self._gradients.drain()

    def edges(self) -> list[Explanation]:
        """Edges of the activations and of the gradients."""
        return self._records.edges() + self._gradients.edges()

    def _send(
        self,
        plan: StepPlan,
        item: EncoderItem,
        rows: torch.Tensor,
        skipped: Sequence[int],
        version: int,
    ) -> None:
        """Send the record of an item, and tell its reader the samples with a skipped image."""
        if skipped:
            self._context.store.put(f"skipped/{plan.step}/{item.index}", skipped)
        self._records.send(
            rows,
            reader=item.reader,
            step=plan.step,
            item=item.index,
            version=version,
            skipped=bool(skipped),
        )

    def _encode(
        self, plan: StepPlan, item: EncoderItem, *, with_graph: bool
    ) -> tuple[torch.Tensor, list[int]]:
        """Encode an item.

        Returns:
            Rows, shape [num_rows, row width], and the samples with a skipped image.
        """
        context = self._context
        reads = self._prefetch[plan.kind]
        images = [reads.get(plan.step, ("pixels", image)) for image in item.images]
        pixels = torch.cat([torch.from_numpy(image.pixels) for image in images])
        # Recomputation and reruns draw the same dropout masks; other layouts have other items.
        seed_dropout(context.config.train.seed, plan.step, item.index)
        with torch.set_grad_enabled(with_graph):
            rows = context.family.encode(
                self.module.module,
                pixels.to(context.world.device, context.dtype),
                [image.grid for image in item.images],
            )
        if rows.shape[0] != item.num_rows:
            raise ValueError(
                f"{step_name(plan.step)}, item {item.index}: the encoder made {rows.shape[0]} rows "
                f"where the plan has {item.num_rows}; the model's image processor must be the one "
                "that belongs to its configuration"
            )
        read = zip(item.images, images, strict=True)
        skipped = {planned.sample for planned, image in read if image.skipped}
        return rows, sorted(skipped)


def pixel_requests(rank: int, plan: StepPlan) -> Iterator[Request]:
    """Images that the encoder of a rank reads for a plan."""
    for item in plan.items_of(rank):
        for image in item.images:
            yield "pixels", image
