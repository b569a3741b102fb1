"""The examples of docs/packing.md for vision-language models run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from flowtrain.data.digits import write_digits
from flowtrain.models.tiny import SMALLEST

PAGE = Path(__file__).parents[4].joinpath("docs", "packing.md").read_text()
SECTION = PAGE.split("## Vision-language models\n")[1].split("\n## ")[0]
DATASET, *LOOPS = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)


@pytest.mark.parametrize("block", LOOPS, ids=["plain", "trainer"])
def test_an_example_trains(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_digits(tmp_path, train=8, heldout=0, sizes=SMALLEST)
    folder = tmp_path / "model"
    fresh = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    fresh.save_pretrained(folder)
    # The Trainer takes a GPU if there is one; `use_cpu` is the test's alone.
    block = block.replace("TrainingArguments(output,", "TrainingArguments(output, use_cpu=True,")
    names = {"folder": folder, "output": tmp_path / "out"}
    exec(DATASET, names)
    exec(block, names)
    trained = names["trainer"].model if "trainer" in names else names["model"]
    before = fresh.state_dict()["lm_head.weight"]
    assert not torch.equal(trained.state_dict()["lm_head.weight"].cpu(), before)
