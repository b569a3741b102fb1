"""Threads that a rank, `auto` and `profile` agree on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from support import run_tree

from flowtrain.config import RunConfig, from_dict
from flowtrain.train.control import threads
from flowtrain.train.launch import layout
from flowtrain.train.launch import threads as threads_of_runs
from flowtrain.train.launch.layout import with_layout
from flowtrain.train.launch.threads import threads_of, with_threads
from flowtrain.train.profile import launch as profile


@pytest.fixture(autouse=True)
def _sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def run(folder: Path, data: Path, *, threads: int, batch: int = 8, **flow: Any) -> RunConfig:
    train = {"threads": threads, "global_batch": batch}
    return from_dict(run_tree(folder / "run", data, train=train, flow=flow))


@pytest.mark.parametrize(
    ("omp", "options", "expected"),
    [
        (None, {"threads": 0, "ranks": 2}, 6),
        (None, {"threads": 0, "encoder_ranks": 2, "backbone_ranks": 6}, 1),
        (None, {"threads": 0, "ranks": 20}, 1),
        (None, {"threads": 5, "ranks": 2}, 5),
        ("3", {"threads": 0, "ranks": 2}, 3),
        ("3", {"threads": 5, "ranks": 2}, 5),
        ("4,2", {"threads": 0, "ranks": 2}, 4),
        ("0", {"threads": 0, "ranks": 2}, 6),
        ("many", {"threads": 0, "ranks": 2}, 6),
        # As many ranks as samples of a step.
        (None, {"threads": 0, "layout": "auto", "batch": 4}, 3),
        (None, {"threads": 0, "layout": "auto", "batch": 99}, 1),
        ("2", {"threads": 0, "layout": "auto", "batch": 4}, 2),
    ],
)
def test_ranks_auto_and_profile_have_the_same_threads(
    omp: str | None,
    options: dict[str, Any],
    expected: int,
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    for module in (threads, threads_of_runs, layout):
        monkeypatch.setattr(module, "available_cores", lambda: 12)
    config = run(tmp_path, data, **options)
    assert threads_of(config) == expected

    started: list[list[str]] = []

    class Process:
        def __init__(self, words: list[str], env: dict[str, str]) -> None:
            started.append(words)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(profile.subprocess, "Popen", Process)
    profile.run_profile(config, tmp_path / "out", seconds=1, image_tokens=9, depth=0, as_json=False)
    words = started[0]
    assert words[words.index("--threads") + 1] == str(expected)

    measured: list[int] = []
    rates = layout.core_rates
    monkeypatch.setattr(
        layout,
        "core_rates",
        lambda dtype, *, threads: (measured.append(threads), rates(dtype, threads=1))[1],
    )
    chosen = with_layout(with_threads(config), resume=False)
    is_auto = config.flow.rank_layout is None
    assert measured == ([expected] if is_auto else [])
    # Ranks read it from config.yaml; launcher and `torchrun` give them another OMP_NUM_THREADS.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads_of(chosen) == expected
    assert not is_auto or len(chosen.flow.chosen.labels) * expected <= 1.5 * 12


def test_a_rank_sets_the_threads_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowtrain.train.assembly.process import RankProcess
    from flowtrain.train.launch.host import RunHost

    set_to: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    config = run(tmp_path, tmp_path, threads=0, ranks=1, start_timeout_s=5.0)
    host = RunHost(config, first=0)
    rank = RankProcess(config, "colocated", 0, host.job, resume=False)
    try:
        rank._device()
    finally:
        rank.membership.leave()
        host.close()
    assert set_to == [7]
