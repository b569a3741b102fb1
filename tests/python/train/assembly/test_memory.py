from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from flowtrain.config import from_dict
from flowtrain.schedule import Action
from flowtrain.train.assembly.memory import device_memory_error

CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80 GiB"


ENCODE = Action(7, "encode", "encoder", 0)
FORWARD = Action(7, "forward", "backbone", 0)
APPLY = Action(7, "apply")


@pytest.mark.parametrize(
    ("action", "flow", "message"),
    [
        (
            FORWARD,
            {},
            r"of a microbatch; set parallel\.backbone\.recompute=full .* inputs, or lower "
            r"train\.microbatch_tokens=4096 \(CUDA out of",
        ),
        (
            ENCODE,
            {},
            r"activations of a whole step; set flow\.recompute=true, .* one item, lower",
        ),
        (
            ENCODE,
            {"mode": "bounded", "staleness": 2},
            r"activations of 3 steps; set .* train\.global_batch=32, or use more ranks",
        ),
        (ENCODE, {"ranks": 2}, r"of a whole step; set flow\.chunk_slots=1, .* one slot, lower"),
        (
            ENCODE,
            {"ranks": 2, "chunk_slots": 1},
            r"activations of 1 slots; set flow\.recompute=true, .* one item, lower",
        ),
        (
            ENCODE,
            {"recompute": True},
            r"in the encoder; set parallel\.encoder\.recompute=full .* flow\.item_tokens=1024",
        ),
        (ENCODE, {"mode": "frozen"}, r"in the encoder; lower flow\.item_tokens=1024"),
        (
            APPLY,
            {},
            r"model\.dtype=float32, model\.compute_dtype=float32 \(CUDA out of memory\)",
        ),
    ],
)
def test_a_full_device_names_the_field_to_lower(
    action: Action, flow: dict[str, Any], message: str
) -> None:
    sections: dict[str, Any] = {
        "run": Path("run"),
        "model": {"config": Path("model")},
        "data": {"path": Path("data.jsonl")},
        "train": {"steps": 1},
        "flow": flow,
    }
    error = device_memory_error(from_dict(sections), action, torch.OutOfMemoryError(CUDA))
    assert re.search(rf"^step 7: the device's memory is full .*{message}", str(error))
