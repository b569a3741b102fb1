"""Commands on the folder of a run in which a file was deleted, cut, or replaced."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from support import run_tree, write_tiny_data

from flowtrain.cli.main import main
from flowtrain.config import RunConfig, dump, load
from flowtrain.train.state.checkpoint_files import CheckpointMeta
from flowtrain.train.state.logs import METRICS, PLANS, TIMING
from flowtrain.train.state.resume import FINGERPRINT, check_copied, fingerprint
from flowtrain.train.state.run_folder import HEADER

RATIOS = {"dist_ratio": 0.0, "encoder_dist_ratio": 0.0, "pad_ratio": 0.0}
STEP = {
    "loss": 2.0,
    "target_tokens": 3,
    **dict.fromkeys(("skipped_samples", "dropped_samples", "truncated_samples"), 0),
    "packing": {"gap": 0.0, "packed": RATIOS, "arrival": RATIOS},
    **dict.fromkeys(("seconds", "tokens", "mfu", "peak_flops", "bytes_through_pool"), 1),
    "activity_s": {},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, and beside it the folder of its run, which has all steps."""
    folder = tmp_path_factory.mktemp("finished")
    write_tiny_data(folder / "data", samples=4)
    path = folder / "run.yaml"
    tree = run_tree(folder / "run", folder / "data", flow={"ranks": 1})
    path.write_text(yaml.safe_dump(tree))
    config = load(path)
    run, steps = config.run, config.train.steps
    newest = run / "checkpoints" / f"step-{steps:08d}"
    newest.mkdir(parents=True)
    (newest / "mark.json").write_text(
        json.dumps(asdict(CheckpointMeta(step=steps - 1, cursor=steps, stepped={})))
    )
    for place in (run, newest):
        (place / "config.yaml").write_text(HEADER + dump(config))
        (place / FINGERPRINT).write_text(json.dumps(fingerprint(config)))
    for log in (METRICS, PLANS, TIMING):
        lines = [json.dumps({"step": step, **STEP}) + "\n" for step in range(steps)]
        (run / log).write_text("".join(lines))
    (run / "pool").write_text("flowtrain-0\n")
    (run / "ended").write_text("complete\n")
    (run / "lock").touch()
    return path


NEWEST = "checkpoints/step-00000004"
READERS = {
    "config.yaml": "train top",
    "ended": "train top",
    "pool": "top",
    METRICS: "train",
    TIMING: "train",
    PLANS: "train",
    FINGERPRINT: "train",
    f"{NEWEST}/mark.json": "train top",
    f"{NEWEST}/config.yaml": "export",
    f"{NEWEST}/{FINGERPRINT}": "train export",
}
"""Commands that read or replace each file of a run that has ended."""
MADE_AGAIN = ("config.yaml", "ended", "pool", FINGERPRINT)
"""Files without which nothing is lost."""


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how != "missing":
        # At the end of a line, a cut file would be a shorter one.
        cut = content[: len(content) // 2].rstrip()
        kinds = {"empty": b"", "cut": cut, "a list": b"[1]\n"}
        path.write_bytes(kinds.get(how, b"\xff\xfe\x81\n"))


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "a list", "no text", "a folder"])
def test_a_command_names_a_damaged_file_in_one_line_or_does_without(
    how: str,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def write(config: RunConfig, checkpoint: Path, *_: Path, **options: object) -> dict[str, float]:
        check_copied(config, checkpoint)
        return {}

    monkeypatch.setattr("flowtrain.train.launch.run.write_final", write)
    monkeypatch.setattr("flowtrain.train.export.write_model", write)
    run = tmp_path / "run"
    commands = {
        "train": ["train", str(finished), f"run={run}", "--resume"],
        "top": ["top", str(run), "--once"],
        "export": ["export", str(run)],
    }
    for file, readers in READERS.items():
        for name in readers.split():
            shutil.copytree(finished.with_suffix(""), run)
            damage(run / file, how)
            code = main(commands[name])
            said = capsys.readouterr().err.splitlines()
            told = [line for line in said if str(run / file) in line]
            if code:
                assert told == said[-1:]
                assert "; " in told[0]
            elif file not in MADE_AGAIN:
                assert told
            assert "Errno" not in "".join(said)
            shutil.rmtree(run)


def test_a_run_that_was_moved_is_not_started_anew_in_its_old_place(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("flowtrain.train.launch.run.write_final", lambda *_: {})
    moved = tmp_path / "moved"
    shutil.copytree(finished.with_suffix(""), moved)
    resume = ["train", str(moved / "config.yaml"), "--resume"]
    assert main(resume) == 2
    assert f"if the run was moved there, add run={moved};" in capsys.readouterr().err
    assert main([*resume, f"run={moved}"]) == 0
    assert main(resume) == 0  # Its configuration has the new place now.
