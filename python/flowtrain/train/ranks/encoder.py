"""The encoder's part of a rank: encodes images, sends records, and receives their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch

from flowtrain.cost.flops import Grid
from flowtrain.data.pixel_maker import PixelMaker, SamplePixels, StoredRows
from flowtrain.schedule import Action
from flowtrain.steps import EncoderItem, PlannedImage, StepPlan, step_name
from flowtrain.train.input.prefetch import Prefetch, Request
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.features import FeatureCache
from flowtrain.train.ranks.step import dropout_of
from flowtrain.train.ranks.weight_stash import WeightStash
from flowtrain.train.records.receiver import RecordReceiver
from flowtrain.train.records.sender import RecordSender
from flowtrain.train.state.module import ModuleState


class _Encoded(NamedTuple):
    """An item that is encoded.

    Attributes:
        rows: Shape [num_rows, row width].
        skipped: Samples with a skipped image.
        hits: Images whose rows were in the cache.
    """

    rows: torch.Tensor
    skipped: list[int]
    hits: int = 0


class EncoderPart:
    """Executes the actions of the encoder.

    The graph of each item is kept until its gradient arrives or, with `flow.recompute`, made again
    under the weights that encoded the item.

    Args:
        context: Connections and services of this rank.
        module: The encoder.
        prefetch: Reads of the planned images, for each kind of plan.
        sender: Sends the rows of the items.
        receiver: Receives the gradients of the rows; None if there are none.
        cache: Features of images that were encoded before; None if there is none. With it, each
            image is encoded alone.

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
        receiver: RecordReceiver | None,
        cache: FeatureCache | None = None,
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
        self._cache = cache
        self._keeps_graphs = self.trains and not flow.recompute
        self._stash = WeightStash(module.trainable, flow.staleness)
        self._encoded: dict[tuple[int, int], _Encoded] = {}
        self._graphs: dict[tuple[int, int], torch.Tensor] = {}
        self._versions: dict[tuple[int, int], int] = {}
        self._arrived: dict[tuple[int, int], torch.Tensor] = {}

    def load(self, plan: StepPlan, _: Action) -> None:
        """Begin to read the images of a step, and of the next one if it is planned already."""
        self._prefetch[plan.kind].start(plan)

    def read(self, plan: StepPlan, index: int) -> None:
        """Begin to read the images of an item, of a step that is not loaded."""
        images = plan.items[index].images
        self._prefetch[plan.kind].add(
            plan.step, [_request(plan.step, i, self._cache) for i in images]
        )

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
            encoded = self._encode(plan, item, with_graph=self._keeps_graphs)
        if self._keeps_graphs:
            self._graphs[place] = encoded.rows
        if self.trains:
            self._versions[place] = self.version
        if not item.is_dummy:
            self._encoded[place] = encoded._replace(rows=encoded.rows.detach())

    def put(self, plan: StepPlan, action: Action) -> None:
        """Send the record of an item, and tell its reader the samples with a skipped image."""
        item, place = _item(plan, action)
        encoded = self._encoded.pop(place)
        if encoded.skipped:
            self._context.store.put(f"skipped/{plan.step}/{item.index}", encoded.skipped)
        self.sender.send(
            encoded.rows,
            reader=item.reader,
            step=plan.step,
            item=item.index,
            version=self.version,
            skipped=bool(encoded.skipped),
            hits=encoded.hits,
        )

    def refused(self, plan: StepPlan, action: Action) -> None:
        """Drop an item that is another rank's by now."""
        _, place = _item(plan, action)
        del self._encoded[place]

    def get(self, plan: StepPlan, action: Action) -> None:
        """Receive the gradient of an item's rows."""
        item, place = _item(plan, action)
        gradient = torch.empty(
            (item.num_rows, self._context.family.row_width),
            dtype=self._context.dtype,
            device=self._context.world.device,
        )
        assert self.receiver is not None
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
                rows = self._encode(plan, item, with_graph=True).rows
            rows.backward(self._gradient(item, place, rows))

    def reduce(self, _plan: StepPlan, _: Action) -> None:
        """Start the sums of the gradients over the ranks that have not started."""
        self.module.parallel.reduce()

    def drop(self, plan: StepPlan) -> None:
        """Drop the images of a step."""
        self._prefetch[plan.kind].forget(plan.step)
        if self._cache is not None:
            self._cache.forget(plan.step)

    def close(self) -> None:
        """Write the features that wait for it."""
        if self._cache is not None:
            self._cache.close()

    def _gradient(
        self, item: EncoderItem, place: tuple[int, int], rows: torch.Tensor
    ) -> torch.Tensor:
        """The gradient of an item's rows; zeros for a dummy."""
        return torch.zeros_like(rows) if item.is_dummy else self._arrived.pop(place)

    def _encode(self, plan: StepPlan, item: EncoderItem, *, with_graph: bool) -> _Encoded:
        """Encode an item."""
        if item.is_dummy:
            return _Encoded(self._rows(plan, item, *self._zeros, with_graph=with_graph), [])
        reads = self._prefetch[plan.kind]
        requests = (_request(plan.step, image, self._cache) for image in item.images)
        images = [reads.get(plan.step, request) for request in requests]
        grids = [image.grid for image in item.images]
        if self._cache is None:
            rows = self._encode_images(plan, item, images, grids, with_graph=with_graph)
        else:
            each = zip(images, grids, strict=True)
            parts = [self._rows_alone(self._cache, plan, item, *one) for one in each]
            rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        if rows.shape[0] != item.num_rows:
            raise ValueError(
                f"{step_name(plan.step)}, item {item.index}: the encoder made {rows.shape[0]} rows "
                f"where the plan has {item.num_rows}; the model's image processor must be the one "
                "that belongs to its configuration"
            )
        read = zip(item.images, images, strict=True)
        skipped = {planned.sample for planned, image in read if image.skipped}
        return _Encoded(rows, sorted(skipped), sum(isinstance(i, StoredRows) for i in images))

    def _rows_alone(
        self,
        cache: FeatureCache,
        plan: StepPlan,
        item: EncoderItem,
        image: SamplePixels | StoredRows,
        grid: Grid,
    ) -> torch.Tensor:
        """Rows of one image, from the cache or for it, in its dtype."""

        def encode(pixels: SamplePixels) -> torch.Tensor:
            return self._encode_images(plan, item, [pixels], [grid], with_graph=False)

        return cache.rows(image, encode)

    def _encode_images(
        self,
        plan: StepPlan,
        item: EncoderItem,
        images: Sequence[SamplePixels],
        grids: Sequence[Grid],
        *,
        with_graph: bool,
    ) -> torch.Tensor:
        """Rows of images that are encoded together."""
        context = self._context
        pixels = self._pixels(images, grids, dtype=context.dtype, device=context.world.device)
        return self._rows(plan, item, pixels, grids, with_graph=with_graph)

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


def pixel_requests(
    rank: int, plan: StepPlan, cache: FeatureCache | None = None
) -> Iterator[Request]:
    """Images that the encoder of a rank reads for a plan, or their features from its cache."""
    for item in plan.items_of(rank):
        for image in item.images:
            yield _request(plan.step, image, cache)


def _request(step: int, image: PlannedImage, cache: FeatureCache | None) -> Request:
    return ("pixels", image) if cache is None else cache.request(step, image)
