from __future__ import annotations

import json
from pathlib import Path

import torch
from support import run_tree

from flowtrain.config import from_dict
from flowtrain.train.ranks.profiler import Profiler


def test_the_trace_has_the_steps_of_the_window_alone(tmp_path: Path) -> None:
    tree = run_tree(tmp_path / "run", tmp_path)
    config = from_dict({**tree, "track": {"profile_start": 1, "profile_steps": 2}})
    config.run.mkdir()
    profiler = Profiler(config.track, config.run, "backbone.0")
    for step in range(4):
        profiler.begin_step(step)
        with torch.profiler.record_function(f"step {step}"):
            torch.ones(2).add(1)
    profiler.close()
    trace = json.loads((config.run / "profile" / "backbone.0.json").read_text())
    found = {event["name"] for event in trace["traceEvents"] if event.get("name", "")[:4] == "step"}
    assert found == {"step 1", "step 2"}
