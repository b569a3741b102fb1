"""Which package of `flowtrain.train` may import which."""

from __future__ import annotations

import re
from pathlib import Path

TRAIN = Path(__file__).resolve().parents[3] / "python" / "flowtrain" / "train"

SEES: dict[str, tuple[str, ...]] = {
    "control": (),
    "parallel": ("control",),
    "state": ("control", "parallel"),
    "records": ("control",),
    "input": ("control", "state"),
    "planning": ("control", "state", "input"),
    "ranks": ("control", "parallel", "state", "records", "input", "planning"),
    # Before a rank starts, the device, the function that debug.fault names and the packages of the
    # trackers are checked, and the layout chosen.
    "launch": ("control", "state", "ranks.device", "ranks.hook", "ranks.peak", "ranks.trackers"),
    # A loop of the caller is a rank, and hosts its job. Encoder ranks start as those of a run.
    "connect": ("control", "state", "records", "input", "planning", "ranks", "launch.local"),
    # A profile computes in a process as a rank does, with the environment of one.
    "profile": (
        "control",
        "state",
        "launch.local",
        "launch.threads",
        "ranks.batch",
        "ranks.device",
    ),
}


def test_packages_import_only_the_packages_they_may_see() -> None:
    assert sorted(SEES) == sorted(path.parent.name for path in TRAIN.glob("*/__init__.py"))
    for package, sees in SEES.items():
        for file in sorted(TRAIN.joinpath(package).glob("*.py")):
            for name in re.findall(r"flowtrain\.train\.([\w.]+) import", file.read_text()):
                seen = any(f"{name}.".startswith(f"{other}.") for other in (package, *sees))
                assert seen, f"{file}: {name}"
