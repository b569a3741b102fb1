"""Documents side by side in one row, each of which attends to itself alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby

import torch

from flowtrain.models.send import send


class Documents:
    """Lengths of the documents of a row, and their boundaries.

    A row has one such object, which the attention of every layer takes, so that boundaries are
    computed and copied to the device once.

    Args:
        lengths: Tokens of each document, in order.
        device: Where attention is computed; the boundaries are copied there at once.

    Attributes:
        lengths: As given.
        num_tokens: Tokens of all of them.
        longest: Tokens of the longest document.
        runs: (count, length) of each run of consecutive documents of equal length.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | None = None) -> None:
        self.lengths = list(lengths)
        self.num_tokens = sum(self.lengths)
        self.longest = max(self.lengths, default=0)
        self.runs = [(len(list(run)), length) for length, run in groupby(self.lengths)]
        self._boundaries: torch.Tensor | None = None
        if device is not None:
            self.boundaries(device)

    def boundaries(self, device: torch.device) -> torch.Tensor:
        """Boundaries from 0 to the tokens of the row, int32, shape [documents + 1].

        The copy to a CUDA device is made once, and the host does not wait.
        """
        if self._boundaries is None or self._boundaries.device != device:
            edges = torch.tensor(list(accumulate(self.lengths, initial=0)), dtype=torch.int32)
            self._boundaries = send(edges, device)
        return self._boundaries
