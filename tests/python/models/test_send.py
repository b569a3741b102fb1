from __future__ import annotations

from typing import Any

import pytest
import torch

from flowtrain.models.send import send_joined


def test_joined_tensors_are_copied_once_to_pinned_memory_and_sent_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, pinned, sent = torch.empty, [], []

    def empty(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        made = make(*shape, **options)
        if pin_memory:
            pinned.append(made.data_ptr())
        return made

    def to(tensor: torch.Tensor, *_: Any, non_blocking: bool = False) -> torch.Tensor:
        sent.append((tensor.data_ptr(), non_blocking))
        return tensor

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "to", to)
    parts = [torch.arange(6, dtype=torch.uint8).view(3, 2), torch.ones(1, 2, dtype=torch.uint8)]
    joined = send_joined(parts, torch.device("cuda"))
    assert torch.equal(joined, torch.cat(parts))
    assert len(pinned) == 1
    assert sent == [(pinned[0], True)]
