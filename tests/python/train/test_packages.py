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
    "ranks": ("control", "state", "records", "input", "planning"),
    "assembly": ("control", "parallel", "state", "records", "input", "planning", "ranks"),
    # Before a rank starts, the device, the function that debug.fault names and the packages of the
    # trackers are checked, and the layout chosen.
    "launch": ("control", "state", "ranks.device", "ranks.hook", "ranks.peak", "ranks.trackers"),
    # A loop of the caller is a rank, and hosts its job. Encoder ranks start as those of a run.
    "connect": (
        *("control", "state", "input", "planning", "ranks", "assembly"),
        *("launch.join", "launch.local"),
    ),
    # A profile computes in a process as a rank does, with the environment of one.
    "profile": (
        "control",
        "state",
        "launch.processes",
        "launch.threads",
        "ranks.batch",
        "ranks.device",
    ),
}


KNOW_A_RUN = {
    # They put a run together, or a rank of one.
    *("launch", "assembly", "connect", "profile"),
    # They are commands on top of these.
    *("demo.py", "fill.py", "printed.py"),
    # They read and write the folder of a run, which has its configuration.
    *("state/run_folder.py", "state/resume.py", "state/final.py"),
}
"""What knows the configuration of a whole run. Everything else takes what it uses, and so serves
any process that has it."""


def test_packages_import_only_the_packages_they_may_see() -> None:
    assert sorted(SEES) == sorted(path.parent.name for path in TRAIN.glob("*/__init__.py"))
    for package, sees in SEES.items():
        for file in sorted(TRAIN.joinpath(package).glob("*.py")):
            for name in re.findall(r"flowtrain\.train\.([\w.]+) import", file.read_text()):
                seen = any(f"{name}.".startswith(f"{other}.") for other in (package, *sees))
                assert seen, f"{file}: {name}"


def test_only_what_puts_a_run_together_knows_its_configuration() -> None:
    found = set()
    for file in TRAIN.rglob("*.py"):
        if re.search(r"\bRunConfig\b|flowtrain\.config(\.load)? import", file.read_text()):
            path = file.relative_to(TRAIN)
            found.add(path.parts[0] if path.parts[0] in KNOW_A_RUN else path.as_posix())
    assert found == KNOW_A_RUN
