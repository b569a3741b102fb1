"""Whether stored features are fetched, or images encoded again: both are timed at the start."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

_TIMED = 8
"""Images of each kind that are timed."""


class FetchTrial:
    """Times the first images that are fetched, and the first that are encoded, and compares them.

    Features are equal either way, so that nothing but the time of a step depends on the result.

    Args:
        device: Device of the encoder.
        tell: Called with what was found.
        tells_all: Whether to tell also that fetching pays, as one rank of a run does.

    Attributes:
        pays: Whether fetching takes less time; None until enough images are timed.
    """

    def __init__(
        self, device: torch.device, tell: Callable[[str], None], *, tells_all: bool
    ) -> None:
        self.pays: bool | None = None
        self._device = device
        self._tell = tell
        self._tells_all = tells_all
        self._fetched: list[tuple[int, float]] = []
        self._encoded: list[tuple[int, float]] = []

    @property
    def wants_encoded(self) -> bool:
        """Whether more images are to be encoded, also such whose features are stored."""
        return self.pays is None and len(self._encoded) < _TIMED

    def fetched(self, rows: int, seconds: float) -> None:
        """Add an image that was fetched.

        Args:
            rows: Its rows.
            seconds: Time to read its file and its rows.
        """
        if self.pays is None and len(self._fetched) < _TIMED:
            self._fetched.append((rows, seconds))
            self._decide()

    def timed(self, encode: Callable[[], torch.Tensor], read_s: float) -> torch.Tensor:
        """Encode an image, and add it.

        Args:
            encode: Returns its rows.
            read_s: Seconds to read and decode it.
        """
        if not self.wants_encoded:
            return encode()
        self._wait()
        start = time.perf_counter()
        rows = encode()
        self._wait()
        self._encoded.append((len(rows), read_s + time.perf_counter() - start))
        self._decide()
        return rows

    def _wait(self) -> None:
        """Wait for the device: its work would count for what comes later."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _decide(self) -> None:
        if min(len(self._fetched), len(self._encoded)) < _TIMED:
            return
        fetch_s, encode_s = _row_seconds(self._fetched), _row_seconds(self._encoded)
        self.pays = fetch_s < encode_s
        rows = round(statistics.median(rows for rows, _ in self._encoded))
        found = (
            f"features of an image of {rows} rows are fetched in {1e3 * rows * fetch_s:,.1f} ms, "
            f"and it is read, decoded and encoded in {1e3 * rows * encode_s:,.1f} ms (medians of "
            f"{_TIMED} images)"
        )
        if not self.pays:
            self._tell(
                f"{found}: this rank encodes all images from now on, and neither fetches nor "
                "stores features; put the cache on a faster disk, or leave flow.cache out"
            )
        elif self._tells_all:
            self._tell(found)


def _row_seconds(timed: list[tuple[int, float]]) -> float:
    """Seconds of a row. The median leaves out first calls, which take longer."""
    return statistics.median(seconds / rows for rows, seconds in timed)
