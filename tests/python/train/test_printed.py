from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import run_tree

from flowtrain.cli.main import main
from flowtrain.schedule import Program


def written(folder: Path, data: Path, **flow: Any) -> str:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run_tree(folder / "run", data, flow=flow)))
    return str(path)


def test_the_schedule_of_some_steps_is_printed_without_a_run(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, data, backbone_ranks=2, mode="bounded", staleness=1)
    assert main(["train", path, "--print-schedule", "--steps", "1:3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# layout 1 + 2; at most at once: ")
    program = Program.parse(text)
    assert list(program.ranks) == ["backbone.0", "backbone.1", "encoder.0"]
    for label, actions in program.ranks.items():
        assert [action.step for action in actions if action.kind == "apply"] == [1, 2]
        # The encoder has encoded step 1 before it begins it, and encodes step 3 within step 2.
        encoded = {action.step for action in actions if action.kind == "encode"}
        assert encoded == ({2, 3} if label == "encoder.0" else set())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--print-schedule", "--steps", "0:9"], "--steps 0:9: the run has train.steps=4"),
        (["--steps", "0:2"], "--steps: it is for --print-schedule; give both, or train.steps=N"),
        (["--print-schedule", "--steps", "2:2"], "2:2: write FIRST:END, such as 0:2"),
        (
            ["--print-schedule", "flow.chunk_slots=2"],
            "flow.chunk_slots=2 with flow.mode=strict, flow.ranks=None: it is for colocated ranks",
        ),
    ],
)
def test_what_cannot_be_printed_is_said(
    options: list[str], message: str, tmp_path: Path, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, data)
    try:
        code = main(["train", path, *options])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert message in capfd.readouterr().err
