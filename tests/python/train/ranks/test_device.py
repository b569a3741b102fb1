from __future__ import annotations

import pytest
import torch

from flowtrain.train.ranks.device import DeviceError, choose_device


def test_a_missing_device_is_refused_and_the_message_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"model\.device=cpu"):
        choose_device("cuda", 0, first=0)


def test_ranks_beyond_the_devices_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert [choose_device("cuda", rank, first=1).index for rank in range(5)] == [1, 0, 1, 0, 1]
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("cuda", 0, first=0).index == 1
    assert chosen == [1, 0, 1, 0, 1, 1]
    assert not torch.backends.cudnn.allow_tf32
