"""Time of a training step on one rank, from the times of layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from flowtrain.config.parallel import Recompute
from flowtrain.cost.layers import PARTS, Counts, Layer, check_parts
from flowtrain.cost.timing import PassSeconds


class RankTimes(Protocol):
    """Times of what a rank computes: of layers, as `Timing`, and of the optimizer."""

    def seconds(
        self, layer: Layer, counts: Counts, *, documents: Sequence[int] | None
    ) -> PassSeconds:
        """Seconds of the passes of a layer.

        Args:
            layer: The layer.
            counts: Of the row.
            documents: Tokens of each document of its attention, in order.
        """
        ...

    def update_seconds(self, parts: Sequence[str]) -> float:
        """Seconds of the optimizer on some parts of the model."""
        ...

    def accumulate_seconds(self, parts: Sequence[str]) -> float:
        """Seconds of adding the gradients of a microbatch to those of the ones before."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One microbatch of a rank, and the images that it encodes for it.

    Attributes:
        documents: Tokens of each document, in order; none for images alone.
        num_targets: Target tokens of all of them.
        image_rows: Rows of image features that are put into the microbatch.
        calls: For each call of the encoder the units of each of its images, in order.
    """

    documents: Sequence[int]
    num_targets: int
    image_rows: int = 0
    calls: Sequence[Sequence[Counts]] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSeconds:
    """Seconds of a step.

    Attributes:
        encode: Forward and backward pass of encoder and projector.
        backbone: Forward and backward pass of the backbone, and its loss.
        update: Norm, clipping and step of the optimizer.
    """

    encode: float
    backbone: float
    update: float

    @property
    def total(self) -> float:
        return self.encode + self.backbone + self.update


def step_seconds(
    times: RankTimes,
    layers: Sequence[Layer],
    rows: Sequence[Row],
    trained: Collection[str],
    *,
    recompute: bool = False,
    levels: Sequence[Recompute] = (),
    logit_bytes: int | None = None,
) -> StepSeconds:
    """Time of a step of a rank.

    Gradients are those of `layer_flops`. Reading, planning and communication are left out.

    Args:
        times: Times of layers and of the optimizer.
        layers: Layers that the rank holds.
        rows: Microbatches of the rank.
        trained: Parts of the model that train, also those on other ranks.
        recompute: Whether the rank encodes again before the encoder's backward pass.
        levels: What each layer recomputes, as `levels_of` says; none of them if it is empty.
        logit_bytes: Bytes of logits beyond which the output head runs forward twice; None for no
            limit.

    Raises:
        ValueError: `trained` names no part of a model, or a size was not measured.
    """
    check_parts(trained)
    kinds = _kinds(layers, levels or ["none"] * len(layers))
    in_front = [kind for kind in kinds if kind.layer.part != "backbone"]
    behind = [kind for kind in kinds if kind.layer.part == "backbone"]
    parts = {kind.layer.part for kind in kinds}
    held = [part for part in trained if part in parts]
    in_front_trained = [part for part in held if part != "backbone"]
    again = recompute and bool(in_front_trained)
    encode = backbone = 0.0
    calls = sum(len(row.calls) for row in rows)
    microbatches = sum(bool(row.documents) for row in rows)
    for row in rows:
        for images in row.calls:
            counts = Counts(*map(sum, zip(*images, strict=True)))
            documents = [length for image in images for length in _frames(image)]
            encode += _seconds(times, in_front, counts, documents, trained, logit_bytes)
            if again:
                encode += _forward_seconds(times, in_front, counts, documents)
        tokens = sum(row.documents)
        counts = Counts(
            tokens=tokens,
            pairs=sum(length**2 for length in row.documents) / 2,
            targets=row.num_targets,
            projected=row.image_rows,
        )
        backbone += _seconds(times, behind, counts, row.documents, trained, logit_bytes)
    if in_front_trained:
        encode += max(0, calls - 1) * times.accumulate_seconds(in_front_trained)
    if "backbone" in held:
        backbone += max(0, microbatches - 1) * times.accumulate_seconds(["backbone"])
    # Without an image, nothing in front of the backbone is updated.
    updated = held if calls else [part for part in held if part == "backbone"]
    return StepSeconds(encode=encode, backbone=backbone, update=times.update_seconds(updated))


@dataclass(slots=True)
class _Kind:
    """Layers that differ in nothing but their name: one of them, and how many there are."""

    layer: Layer
    level: Recompute
    number: int = 0


def _kinds(layers: Iterable[Layer], levels: Iterable[Recompute]) -> list[_Kind]:
    found: dict[tuple[Layer, Recompute], _Kind] = {}
    for layer, level in zip(layers, levels, strict=True):
        if not layer.left_out:
            key = replace(layer, name=""), level
            found.setdefault(key, _Kind(layer, level)).number += 1
    return list(found.values())


def _frames(image: Counts) -> list[int]:
    """Tokens of each document of the tower that an image has."""
    length = round(image.vision_pairs / image.vision_tokens) if image.vision_pairs else 0
    return [length] * round(image.vision_tokens / length) if length else []


def _forward_seconds(
    times: RankTimes, kinds: Iterable[_Kind], counts: Counts, documents: Sequence[int]
) -> float:
    """Seconds of the forward pass of layers."""
    return sum(
        kind.number * times.seconds(kind.layer, counts, documents=documents).forward
        for kind in kinds
    )


def _seconds(
    times: RankTimes,
    kinds: Iterable[_Kind],
    counts: Counts,
    documents: Sequence[int],
    trained: Collection[str],
    logit_bytes: int | None,
) -> float:
    """Seconds of the passes that layers have, with what the backward pass computes again."""
    total = 0.0
    for kind in kinds:
        layer = kind.layer
        seconds = times.seconds(layer, counts, documents=documents)
        total += kind.number * seconds.forward
        trains = layer.part in trained
        gradient_before = any(part in trained for part in PARTS[: PARTS.index(layer.part)])
        if not layer.reaches_loss or not (trains or gradient_before):
            continue
        starts = bool(layer.products) and all(p.is_first for p in layer.products if p.has_weight)
        if gradient_before or not starts:
            total += kind.number * seconds.backward_input
        if trains:
            total += kind.number * seconds.backward_weight
        if kind.level == "full" or (
            logit_bytes is not None and layer.logit_bytes(counts) > logit_bytes
        ):
            total += kind.number * seconds.forward
        elif kind.level == "selective":
            total += kind.number * (seconds.forward - seconds.attention)
    return total
