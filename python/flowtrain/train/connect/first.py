"""Values that the first rank of a loop makes for all ranks, or its failure."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from flowtrain.error_texts import reason_of
from flowtrain.train.connect.model import LoopModel
from flowtrain.train.control.ending import JobFailed, end_of


def from_first(loop: LoopModel, label: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Values that the first rank of a loop makes, on all ranks; all call this together.

    Args:
        loop: The ranks.
        label: Name of the first.
        make: Makes the values, as JSON has them; called on the first rank alone.

    Raises:
        JobFailed: It failed on the first rank; there, what it raised is raised.
    """
    if loop.size == 1:
        return make()
    if loop.rank != 0:
        found: dict[str, Any] = json.loads(_receive(loop.reduce_on))
        if "failed" in found:
            raise JobFailed(found["failed"])
        return found
    try:
        made = make()
    except BaseException as error:
        reason = end_of(label, os.getpid(), reason_of(error))
        with suppress(RuntimeError):  # A rank that has died is not the first error.
            _send(json.dumps({"failed": reason}), loop.reduce_on)
        raise
    _send(json.dumps(made), loop.reduce_on)
    return made


def _send(text: str, device: torch.device) -> None:
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)
    dist.broadcast(torch.tensor([len(data)], device=device), src=0)
    dist.broadcast(data, src=0)


def _receive(device: torch.device) -> str:
    size = torch.zeros(1, dtype=torch.int64, device=device)
    dist.broadcast(size, src=0)
    data = torch.empty(int(size), dtype=torch.uint8, device=device)
    dist.broadcast(data, src=0)
    return data.cpu().numpy().tobytes().decode()
