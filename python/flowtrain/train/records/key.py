"""Identity of a slab of a record."""

from __future__ import annotations

from dataclasses import dataclass

MAX_HITS = (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class RecordKey:
    """Identity of one slab of a record, independent of the rank that produced it.

    It is packed into the 128-bit key of a descriptor; numbers of bits are in brackets.

    Attributes:
        step: Step of the record (32).
        item: Number of the item within the step (24).
        part: Number of the slab within the record (24).
        version: Step whose weights computed the rows (32).
        skipped: Whether an image of the item was replaced by zeros (1).
        hits: Images of the item whose rows were in a cache, at most `MAX_HITS` (15).
    """

    step: int
    item: int
    part: int
    version: int
    skipped: bool = False
    hits: int = 0

    def pack(self) -> int:
        key = min(self.hits, MAX_HITS) << 32 | self.step
        key = key << 24 | self.item
        key = key << 24 | self.part
        key = key << 32 | self.version
        return key << 1 | self.skipped

    @staticmethod
    def unpack(key: int) -> RecordKey:
        return RecordKey(
            step=key >> 81 & 0xFFFFFFFF,
            item=key >> 57 & 0xFFFFFF,
            part=key >> 33 & 0xFFFFFF,
            version=key >> 1 & 0xFFFFFFFF,
            skipped=bool(key & 1),
            hits=key >> 113,
        )
