"""The plan of one optimizer step: plain data that every rank reads in the same words."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

from flowtrain.cost.flops import Grid


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One sample in a microbatch."""

    sample: int
    """Line of the data file, from 0."""
    num_tokens: int
    num_targets: int
    image_tokens: int
    grids: tuple[Grid, ...]
    """Grid of each of its images, whatever the files have when they are read."""


class PlannedImage(NamedTuple):
    """One image of an item."""

    sample: int
    """Line of the data file, from 0."""
    image: int
    """Number of the image within the sample, from 0."""
    grid: Grid
    """Grid to encode it with, whatever the file has when it is read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderItem:
    """Images that one encoder rank encodes at once, for one slot of one backbone rank.

    Its output is one record: `num_tokens` rows that land at `row` of the slot's image rows.
    """

    index: int
    """Number of the item within the step; with the step it is the record's identity."""
    encoder: int
    reader: int
    slot: int
    row: int
    num_tokens: int
    images: tuple[PlannedImage, ...]
    """In row order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """How even a step is over the ranks, and what of it is padding; 0 is best, 1 worst."""

    dist_ratio: float
    """Backbone: 1 - mean / max over ranks of the step's cost; ranks meet at its end."""
    encoder_dist_ratio: float
    """The same of the encoder ranks, by image tokens."""
    pad_ratio: float
    """Padding / allocated tokens, if each microbatch were a rectangle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """What the scheduler made of a step, its proof, and what arrival order would have been."""

    bound: float
    """No schedule has a slowest backbone rank below this, in forward FLOPs."""
    gap: float
    """Slowest rank / bound - 1."""
    packed: Balance
    """Documents side by side; the rows of a slot are padded to the longest over ranks."""
    arrival: Balance
    """Equal counts in seeded order; each sample is padded to the longest of its microbatch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """Everything that is fixed about a step before it starts.

    `slots` is the same for every backbone rank; a rank may have nothing in one of them.
    """

    step: int
    kind: Literal["train", "end"]
    slots: int = 0
    documents: tuple[tuple[tuple[Document, ...], ...], ...] = ()
    """[backbone rank][slot][document]."""
    items: tuple[EncoderItem, ...] = ()
    """In the order of slots, which is the order in which they are made and read."""
    num_targets: int = 0
    """Target tokens of the whole step, the N that the loss is divided by."""
    samples: tuple[int, ...] = ()
    """Lines of the data file, in the seeded order."""
    cursor: int = 0
    """Samples drawn from the data order up to and including this step, dropped ones too."""
    dropped: int = 0
    """Samples drawn for this step and left out, because they are longer than a microbatch."""
    truncated: int = 0
    """Samples of this step that were cut off to fit into a microbatch."""
    flops: float = 0.0
    """Model FLOPs of training on the step: real tokens, no recomputation."""
    packing: Packing | None = None
    """None at the end."""

    def items_of(self, encoder: int) -> tuple[EncoderItem, ...]:
        """Items of one encoder rank, in the order in which it makes them."""
        return tuple(item for item in self.items if item.encoder == encoder)

    def items_for(self, reader: int, slot: int) -> tuple[EncoderItem, ...]:
        """Items whose rows one slot of one backbone rank needs, in row order."""
        return tuple(i for i in self.items if i.reader == reader and i.slot == slot)

    def documents_of(self, reader: int) -> Iterator[tuple[int, tuple[Document, ...]]]:
        """(slot, documents) of one backbone rank, empty slots left out."""
        return ((m, docs) for m, docs in enumerate(self.documents[reader]) if docs)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> StepPlan:
        raw = json.loads(text)
        raw["documents"] = tuple(
            tuple(
                tuple(Document(**{**doc, "grids": _grids(doc["grids"])}) for doc in slot)
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

    def checksum(self) -> int:
        """CRC-32 of the JSON form: both worlds compare it before a step takes effect."""
        return zlib.crc32(self.to_json().encode())


def _grids(raw: list[list[int]]) -> tuple[Grid, ...]:
    return tuple((frames, rows, columns) for frames, rows, columns in raw)


def _image(sample: int, image: int, grid: list[int]) -> PlannedImage:
    return PlannedImage(sample, image, *_grids([grid]))
