from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flowtrain.config import from_dict
from flowtrain.train.ranks.memory import DeviceMemoryError, memory_errors

CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80 GiB"


@pytest.mark.parametrize(
    ("kind", "flow", "message"),
    [
        ("backbone", {}, r"of a microbatch; lower train\.microbatch_tokens=4096 \(CUDA out of"),
        (
            "encode",
            {},
            r"activations of a whole step; set flow\.recompute=true, .* one item, lower",
        ),
        (
            "encode",
            {"mode": "bounded", "staleness": 2},
            r"activations of 3 steps; set .* train\.global_batch=32, or use more ranks",
        ),
        ("encode", {"recompute": True}, r"in the encoder; lower flow\.item_tokens=1024"),
        ("encode", {"mode": "frozen"}, r"in the encoder; lower flow\.item_tokens=1024"),
        (
            "optimizer",
            {},
            r"model\.dtype=float32, optim\.master_weights=True \(CUDA out of memory\)",
        ),
    ],
)
def test_a_full_device_names_the_field_to_lower(
    kind: str, flow: dict[str, Any], message: str
) -> None:
    sections: dict[str, Any] = {
        "run": Path("run"),
        "model": {"config": Path("model")},
        "data": {"path": Path("data.jsonl")},
        "train": {"steps": 1},
        "flow": flow,
    }
    with (
        pytest.raises(DeviceMemoryError, match=rf"step 7: the device's memory is full .*{message}"),
        memory_errors(from_dict(sections), kind, 7),
    ):
        raise torch.OutOfMemoryError(CUDA)
