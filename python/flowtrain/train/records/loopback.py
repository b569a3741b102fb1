"""Records that a rank sends to itself."""

from __future__ import annotations

import torch

from flowtrain.train.records.key import RecordKey


class Loopback:
    """Keeps the records that a colocated rank sends to itself; they do not cross the pool.

    Args:
        replica: Number of this rank among those of its modules.
    """

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self._records: dict[tuple[int, int], tuple[RecordKey, torch.Tensor]] = {}

    def put(self, key: RecordKey, rows: torch.Tensor) -> None:
        """Keep a record, without a copy; nobody may change its rows."""
        self._records[key.step, key.item] = (key, rows)

    def take(self, step: int, item: int) -> tuple[RecordKey, torch.Tensor] | None:
        """Remove and return a record; None if this rank has not sent it to itself."""
        return self._records.pop((step, item), None)
