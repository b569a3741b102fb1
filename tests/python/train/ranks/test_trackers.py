from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import run_tree

from flowtrain.config import ConfigError, RunConfig, from_dict
from flowtrain.config.tree import to_dict
from flowtrain.train.ranks import trackers
from flowtrain.train.ranks.trackers import Tracker, check_trackers, open_trackers


def configuration(folder: Path, **track: Any) -> RunConfig:
    config = from_dict({**run_tree(folder / "run", folder), "track": track})
    config.run.mkdir()
    return config


def opened(config: RunConfig, first: int) -> list[Tracker]:
    return open_trackers(config.track, config.run, first=first, settings=to_dict(config))


def test_tensorboard_has_each_step_once_after_a_resume(tmp_path: Path) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", exc_type=ImportError
    )
    config = configuration(tmp_path, tensorboard=True)
    for first, losses in ((0, [3.0, 2.0, 1.0]), (1, [1.5, 1.25])):
        [tracker] = opened(config, first)
        for step, loss in enumerate(losses, first):
            tracker.log(step, {"train/loss": loss})
        tracker.close()
    events = accumulators.EventAccumulator(str(config.run / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert found == [(0, 3.0), (1, 1.5), (2, 1.25)]


def test_a_resumed_run_continues_its_wandb_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []
    logged: list[Any] = []

    def init(**options: Any) -> Any:
        started.append(options)
        return SimpleNamespace(
            log=lambda figures, step: logged.append((step, figures)),
            finish=lambda: logged.append("finish"),
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # type: ignore[arg-type]
    config = configuration(tmp_path, wandb="digits")
    for first in (0, 1):
        [tracker] = opened(config, first)
        tracker.log(first, {"train/loss": 2.0})
        tracker.close()
    assert [options["project"] for options in started] == ["digits"] * 2
    assert started[0]["id"] == started[1]["id"]
    assert started[1]["resume"] == "allow"
    assert started[0]["config"]["train"]["steps"] == config.train.steps
    assert logged == [(0, {"train/loss": 2.0}), "finish", (1, {"train/loss": 2.0}), "finish"]


def test_a_missing_tracker_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"track\.wandb: wandb is not installed; run pip install"):
        check_trackers(configuration(tmp_path, wandb="digits").track)
