"""The plan of one optimizer step: plain data, equal on every rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from flowtrain.cost.flops import Grid

FIRST_EVALUATION = 1 << 31
"""Number of the first plan of an evaluation; numbers of train steps are smaller."""


def step_name(step: int) -> str:
    """Name of a plan in messages."""
    if step < FIRST_EVALUATION:
        return f"step {step}"
    return f"evaluation batch {step - FIRST_EVALUATION}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One sample in a microbatch."""

    sample: int
    """Number of the sample in the data file, from 0."""
    num_tokens: int
    num_targets: int
    image_tokens: int
    grids: tuple[Grid, ...]
    """Planned grid of each of its images and videos."""
    seconds: tuple[float, ...] = ()
    """For each grid the seconds between the frames of a video, or 0 for an image; empty without a
    video."""


class PlannedImage(NamedTuple):
    """One image or video of an item."""

    sample: int
    """Number of the sample in the data file, from 0."""
    image: int
    """Number of the image or video within the sample, from 0."""
    grid: Grid
    """Planned grid; the image is encoded with it even if the file changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderItem:
    """Images that one encoder rank encodes together, for one slot of one backbone rank.

    The output is one record: `num_rows` rows, which start at `row` of the slot's image rows. A
    dummy has no image and no record: its rank encodes zeros, since all ranks of a sharded encoder
    have to run as many passes.
    """

    index: int
    """Number of the item within the step; step and number identify the record."""
    encoder: int
    """Encoder rank that encodes the item; 0 if whichever rank is free takes it."""
    reader: int
    """Backbone rank that reads the record."""
    slot: int
    row: int
    num_rows: int
    images: tuple[PlannedImage, ...]
    """Images in the order of rows."""

    @property
    def is_dummy(self) -> bool:
        return self.num_rows == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """Imbalance over the ranks, and share of padding, of a step; 0 is best, 1 worst."""

    dist_ratio: float
    """1 - mean / max over the ranks with the backbone, of the cost of the whole step: that of the
    backbone, or of both modules if ranks hold both."""
    encoder_dist_ratio: float
    """The same for the encoder ranks, by rows of image features."""
    pad_ratio: float
    """Padding / allocated tokens; `Packing` says to which length tokens are padded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """Results of the scheduler for a step, its proven bound, and the balance of arrival order."""

    bound: float
    """Lower bound for the slowest of these ranks in any schedule: forward FLOPs of the backbone, or
    FLOPs of both modules."""
    gap: float
    """Cost of the slowest rank / bound - 1."""
    packed: Balance
    """The packed step; each slot padded to its longest rank."""
    arrival: Balance
    """Equal counts of samples per microbatch, in seeded order; each sample padded to the longest of
    its microbatch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """Everything that is fixed about a step, or a batch of an evaluation, before it starts.

    `slots` is the same for every backbone rank; some slots of a rank may be empty.
    """

    step: int
    """Number of the train step, or of the batch from `FIRST_EVALUATION` on."""
    kind: Literal["train", "eval", "answer", "end"]
    """Use of the samples: training, their loss, or an answer to each. `end` follows the last step,
    and the last batch of each evaluation."""
    slots: int = 0
    documents: tuple[tuple[tuple[Document, ...], ...], ...] = ()
    """[backbone rank][slot][document]."""
    items: tuple[EncoderItem, ...] = ()
    """Items in slot order, in which they are encoded and read."""
    num_targets: int = 0
    """Target tokens of the whole step, by which the loss is divided."""
    samples: tuple[int, ...] = ()
    """Numbers of the samples in the data file, in the seeded order."""
    cursor: int = 0
    """Samples drawn from the data order up to and including this step, with dropped ones."""
    dropped: int = 0
    """Samples that were drawn for this step and left out, as they exceed a microbatch. Those of an
    evaluation are counted in its plan of kind "end"."""
    truncated: int = 0
    """Samples of this step that were truncated to fit into a microbatch."""
    flops: float = 0.0
    """Model FLOPs of training on the step: real tokens, no recomputation."""
    packing: Packing | None = None
    """None for a plan of kind "end"."""
    error: str | None = None
    """Why the planner ended the run early, in a plan of kind "end"."""
    stopped: bool = False
    """Whether a plan of kind "end" ends the run early on request, so that it is saved."""

    @property
    def is_step(self) -> bool:
        """Whether it is that of a train step, and not of a batch of an evaluation."""
        return self.step < FIRST_EVALUATION

    def items_of(self, encoder: int) -> tuple[EncoderItem, ...]:
        """Items of one encoder rank, in the order in which the rank encodes them."""
        return tuple(item for item in self.items if item.encoder == encoder)

    def items_for(self, reader: int, slot: int) -> tuple[EncoderItem, ...]:
        """Items whose rows one slot of one backbone rank needs, in row order."""
        return tuple(
            i for i in self.items if i.reader == reader and i.slot == slot and not i.is_dummy
        )

    def documents_of(self, reader: int) -> Iterator[tuple[int, tuple[Document, ...]]]:
        """(slot, documents) of one backbone rank, without empty slots."""
        return ((m, docs) for m, docs in enumerate(self.documents[reader]) if docs)

    def to_json(self) -> str:
        return json.dumps(self, separators=(",", ":"), default=_fields)

    @staticmethod
    def from_json(text: str | bytes) -> StepPlan:
        raw = json.loads(text)
        raw["documents"] = tuple(
            tuple(
                tuple(
                    Document(
                        **{
                            **doc,
                            "grids": _grids(doc["grids"]),
                            "seconds": tuple(doc.get("seconds", ())),
                        }
                    )
                    for doc in slot
                )
                for slot in rank
            )
            for rank in raw["documents"]
        )
        raw["items"] = tuple(
            EncoderItem(**{**item, "images": tuple(_image(*image) for image in item["images"])})
            for item in raw["items"]
        )
        raw["samples"] = tuple(raw["samples"])
        if (packing := raw["packing"]) is not None:
            balances = {name: Balance(**packing[name]) for name in ("packed", "arrival")}
            raw["packing"] = Packing(**{**packing, **balances})
        return StepPlan(**raw)


def _fields(value: Any) -> dict[str, Any]:
    """Fields of a part of a plan; `dataclasses.asdict` would copy all that it holds."""
    return {name: getattr(value, name) for name in value.__slots__}


def _grids(raw: list[list[int]]) -> tuple[Grid, ...]:
    return tuple((frames, rows, columns) for frames, rows, columns in raw)


def _image(sample: int, image: int, grid: list[int]) -> PlannedImage:
    return PlannedImage(sample, image, *_grids([grid]))
