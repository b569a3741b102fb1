from __future__ import annotations

import faults
import pytest

from flowtrain.train.ranks.hook import load_hook


def test_a_hook_is_called_in_its_rank_only(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(faults, "halt", lambda: called.append(label))
    for label in ("encoder.0", "encoder.1"):
        load_hook("faults:halt:encoder.1")(label)
        load_hook("faults:halt")(label)
    assert called == ["encoder.0", "encoder.1", "encoder.1"]
