"""The encoder's part of a rank: encodes images, sends records, and receives their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import torch

from flowtrain.cost.flops import Grid
from flowtrain.data.pixel_maker import PixelMaker
from flowtrain.schedule import Action
from flowtrain.steps import EncoderItem, StepPlan, step_name
from flowtrain.train.input.prefetch import Prefetch, Request
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.step import dropout_of
from flowtrain.train.ranks.weight_stash import WeightStash
from flowtrain.train.records.receiver import RecordReceiver
from flowtrain.train.records.sender import RecordSender
from flowtrain.train.state.module import ModuleState


class EncoderPart:
    """Executes the actions of the encoder.

    The graph of each item is kept until its gradient arrives or, with `flow.recompute`, made again
    under the weights that encoded the item.

    Args:
        context: Connections and services of this rank.
        module: The encoder.
        prefetch: Reads of the planned images, for each kind of plan.
        sender: Sends the rows of the items.
        receiver: Receives the gradients of the rows.

    Attributes:
        version: Step whose update gives the next weights: the present ones have this version.
    """

    def __init__(
        self,
        context: RankContext,
        module: ModuleState,
        prefetch: Mapping[str, Prefetch],
        *,
        sender: RecordSender,
        receiver: RecordReceiver,
    ) -> None:
        flow = context.flow
        self.module = module
        self.trains = flow.mode != "frozen"
        self.version = 0
        self._context = context
        self._prefetch = prefetch
        self._pixels = PixelMaker(context.family)
        self.sender = sender
        self.receiver = receiver
        self._keeps_graphs = self.trains and not flow.recompute
        self._stash = WeightStash(module.trainable, flow.staleness)
        self._encoded: dict[tuple[int, int], tuple[torch.Tensor, list[int]]] = {}
        self._graphs: dict[tuple[int, int], torch.Tensor] = {}
        self._versions: dict[tuple[int, int], int] = {}
        self._arrived: dict[tuple[int, int], torch.Tensor] = {}

    def load(self, plan: StepPlan, _: Action) -> None:
        """Begin to read the images of a step, and of the next one if it is planned already."""
        self._prefetch[plan.kind].start(plan)

    def encode(self, plan: StepPlan, action: Action) -> None:
        """Encode an item."""
        item, place = _item(plan, action)
        if plan.kind != "train":
            encoded = self._encode(plan, item, with_graph=False)
            if not item.is_dummy:
                self._encoded[place] = encoded
            return
        self._stash.save(self.version)
        with self._stash.in_graphs(self.version):
            rows, skipped = self._encode(plan, item, with_graph=self._keeps_graphs)
        if self._keeps_graphs:
            self._graphs[place] = rows
        if self.trains:
            self._versions[place] = self.version
        if not item.is_dummy:
            self._encoded[place] = rows.detach(), skipped

    def put(self, plan: StepPlan, action: Action) -> None:
        """Send the record of an item, and tell its reader the samples with a skipped image."""
        item, place = _item(plan, action)
        rows, skipped = self._encoded.pop(place)
        if skipped:
            self._context.store.put(f"skipped/{plan.step}/{item.index}", skipped)
        self.sender.send(
            rows,
            reader=item.reader,
            step=plan.step,
            item=item.index,
            version=self.version,
            skipped=bool(skipped),
        )

    def get(self, plan: StepPlan, action: Action) -> None:
        """Receive the gradient of an item's rows."""
        item, place = _item(plan, action)
        gradient = torch.empty(
            (item.num_rows, self._context.family.row_width),
            dtype=self._context.dtype,
            device=self._context.world.device,
        )
        self.receiver.gather(gradient, step=plan.step, item=item.index)
        self._arrived[place] = gradient

    def encoder_backward(self, plan: StepPlan, action: Action) -> None:
        """Backward of an item; the sums over the ranks start during the last one."""
        item, place = _item(plan, action)
        version = self._versions.pop(place)
        if action.last:
            self.module.parallel.last_backward()
        # Recomputation of layers reads weights in the backward pass, too.
        with self._stash.restored(version):
            if self._keeps_graphs:
                rows = self._graphs.pop(place)
            else:
                rows, _ = self._encode(plan, item, with_graph=True)
            rows.backward(self._gradient(item, place, rows))

    def reduce(self, _plan: StepPlan, _: Action) -> None:
        """Start the sums of the gradients over the ranks that have not started."""
        self.module.parallel.reduce()

    def drop(self, plan: StepPlan) -> None:
        """Drop the images of a step."""
        self._prefetch[plan.kind].forget(plan.step)

    def _gradient(
        self, item: EncoderItem, place: tuple[int, int], rows: torch.Tensor
    ) -> torch.Tensor:
        """The gradient of an item's rows; zeros for a dummy."""
        return torch.zeros_like(rows) if item.is_dummy else self._arrived.pop(place)

    def _encode(
        self, plan: StepPlan, item: EncoderItem, *, with_graph: bool
    ) -> tuple[torch.Tensor, list[int]]:
        """Encode an item.

        Returns:
            Rows, shape [num_rows, row width], and the samples with a skipped image.
        """
        context = self._context
        if item.is_dummy:
            return self._rows(plan, item, *self._zeros, with_graph=with_graph), []
        reads = self._prefetch[plan.kind]
        images = [reads.get(plan.step, ("pixels", image)) for image in item.images]
        grids = [image.grid for image in item.images]
        pixels = self._pixels(images, grids, dtype=context.dtype, device=context.world.device)
        rows = self._rows(plan, item, pixels, grids, with_graph=with_graph)
        if rows.shape[0] != item.num_rows:
            raise ValueError(
                f"{step_name(plan.step)}, item {item.index}: the encoder made {rows.shape[0]} rows "
                f"where the plan has {item.num_rows}; the model's image processor must be the one "
                "that belongs to its configuration"
            )
        read = zip(item.images, images, strict=True)
        skipped = {planned.sample for planned, image in read if image.skipped}
        return rows, sorted(skipped)

    def _rows(
        self,
        plan: StepPlan,
        item: EncoderItem,
        pixels: torch.Tensor,
        grids: Sequence[Grid],
        *,
        with_graph: bool,
    ) -> torch.Tensor:
        """The rows of pixels."""
        context = self._context
        # Other layouts have other items, and so other masks.
        dropout = dropout_of(context.world.device, context.seed, plan.step, item.index)
        with dropout, torch.set_grad_enabled(with_graph):
            rows: torch.Tensor = self.module.module(pixels, grids)
        return rows

    @cached_property
    def _zeros(self) -> tuple[torch.Tensor, list[Grid]]:
        """The smallest image, for a pass that a rank runs because others do."""
        context = self._context
        processor = context.family.image_processor()
        grid = processor.grid(*processor.smallest_size, num_images=1)
        shape = processor.pixel_shape(grid)
        return torch.zeros(shape, dtype=context.dtype, device=context.world.device), [grid]


def _item(plan: StepPlan, action: Action) -> tuple[EncoderItem, tuple[int, int]]:
    """The item of an action, and its step and number."""
    assert action.index is not None
    return plan.items[action.index], (plan.step, action.index)


def pixel_requests(rank: int, plan: StepPlan) -> Iterator[Request]:
    """Images that the encoder of a rank reads for a plan."""
    for item in plan.items_of(rank):
        for image in item.images:
            yield "pixels", image
