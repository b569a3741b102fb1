"""The largest items that memory has room for."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain_core import _bench


def check_sizes(sizes: Sequence[int], buffers: int, device_bytes: int | None = None) -> None:
    """Check that a measurement's buffers fit in memory.

    Args:
        sizes: Bytes of an item; values of `--bytes`.
        buffers: Number of buffers of an item's size that exist at a time.
        device_bytes: Memory of the device that holds them; by default this machine's available
            memory does.

    Raises:
        ValueError: They do not fit.
    """
    of, memory_bytes = "the device's memory", device_bytes
    if memory_bytes is None:
        of, memory_bytes = "the available memory", _bench.available_bytes()
    if (largest := max(sizes)) * buffers > memory_bytes:
        raise ValueError(
            f"--bytes {largest}: {buffers} buffers of this size do not fit in {of}, {memory_bytes} "
            f"bytes; give at most {memory_bytes // buffers}"
        )
