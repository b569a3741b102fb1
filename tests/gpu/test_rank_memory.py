"""What torch counts of the memory of a GPU."""

from __future__ import annotations

import pytest
import torch

from flowtrain.train.ranks.memory import memory_of, peak_bytes

pytestmark = [pytest.mark.gpu, pytest.mark.limit(100)]


def test_memory_of_a_gpu_is_that_of_the_most_it_held() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    before = memory_of(device)
    held = torch.empty(before["reserved"] + (64 << 20), dtype=torch.uint8, device=device)
    size = held.numel()
    del held
    memory = memory_of(device)
    assert memory["reserved"] >= memory["allocated"] >= size
    assert peak_bytes(device) == memory["allocated"]
