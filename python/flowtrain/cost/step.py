"""Time of a training step on one rank, from the times of layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flowtrain.cost.layers import PARTS, Counts, Layer, check_parts
from flowtrain.cost.tables import Tables


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One microbatch of a rank, and the images that it encodes for it.

    Attributes:
        documents: Tokens of each document, in order.
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
    tables: Tables, layers: Sequence[Layer], rows: Sequence[Row], trained: Collection[str]
) -> StepSeconds:
    """Time of a step of a rank that holds all parts of the model.

    Gradients are those of `layer_flops`. Reading, planning and communication are left out.

    Args:
        tables: Measured times.
        layers: Layers of the model.
        rows: Microbatches of the rank.
        trained: Parts that train.

    Raises:
        ValueError: `trained` names no part of a model, or a size was not measured.
    """
    check_parts(trained)
    computed = [layer for layer in layers if not layer.left_out]
    in_front = [layer for layer in computed if layer.part != "backbone"]
    behind = [layer for layer in computed if layer.part == "backbone"]
    in_front_trained = [part for part in trained if part != "backbone"]
    encode = backbone = 0.0
    calls = 0
    for row in rows:
        for images in row.calls:
            counts = Counts(*map(sum, zip(*images, strict=True)))
            documents = [length for image in images for length in _frames(image)]
            encode += sum(_seconds(tables, la, counts, documents, trained) for la in in_front)
            calls += 1
        tokens = sum(row.documents)
        counts = Counts(
            tokens=tokens,
            pairs=sum(length**2 for length in row.documents) / 2,
            targets=row.num_targets,
            projected=row.image_rows,
        )
        backbone += sum(_seconds(tables, la, counts, row.documents, trained) for la in behind)
    if in_front_trained:
        encode += max(0, calls - 1) * tables.accumulate_seconds(in_front_trained)
    if "backbone" in trained:
        backbone += max(0, len(rows) - 1) * tables.accumulate_seconds(["backbone"])
    # Without an image, nothing in front of the backbone is updated.
    updated = list(trained) if calls else [part for part in trained if part == "backbone"]
    return StepSeconds(encode=encode, backbone=backbone, update=tables.update_seconds(updated))


def _frames(image: Counts) -> list[int]:
    """Tokens of each document of the tower that an image has."""
    length = round(image.vision_pairs / image.vision_tokens) if image.vision_pairs else 0
    return [length] * round(image.vision_tokens / length) if length else []


def _seconds(
    tables: Tables,
    layer: Layer,
    counts: Counts,
    documents: Sequence[int],
    trained: Collection[str],
) -> float:
    """Seconds of the passes that a layer has."""
    seconds = tables.seconds(layer, counts, documents=documents)
    total = seconds.forward
    if not layer.reaches_loss:
        return total
    trains = layer.part in trained
    gradient_before = any(part in trained for part in PARTS[: PARTS.index(layer.part)])
    starts = bool(layer.products) and all(p.is_first for p in layer.products if p.has_weight)
    if gradient_before or (trains and not starts):
        total += seconds.backward_input
    if trains:
        total += seconds.backward_weight
    return total
