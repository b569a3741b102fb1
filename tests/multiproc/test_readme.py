"""The examples in the README run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
HEAD = "import numpy\nembedding = numpy.full((576, 1024), 0.5, dtype='float32')\n"
UNTIL_READ = """
import time
end = time.monotonic() + 60
while pool.stats()["items_released"] == 0 and time.monotonic() < end:
    time.sleep(0.01)
"""


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_the_hand_off_runs_between_two_plain_processes(library: str) -> None:
    producer, consumer, _ = examples()
    name = f"readme-{library}-{os.getpid()}"
    producer = HEAD + producer.replace('"vision"', f'"{name}"') + UNTIL_READ
    consumer = consumer.replace('"vision"', f'"{name}"')
    if library == "torch":
        consumer = "import torch\n" + consumer
    else:
        consumer = "import numpy\n" + consumer.replace("torch.from_dlpack", "numpy.asarray")
    shown = "assert embedding.shape == (576, 1024) and float(embedding.sum()) == 294912.0\n"
    consumer = consumer.replace("del embedding", f"{shown}del embedding")
    consumer += "import sys\nprint('torch' in sys.modules)\n"
    with subprocess.Popen([sys.executable, "-c", producer]) as writing:
        read = subprocess.run(
            [sys.executable, "-c", consumer], capture_output=True, text=True, timeout=60
        )
        assert read.stdout.strip() == str(library == "torch"), read.stderr
        assert writing.wait(timeout=60) == 0


def test_the_packed_loop_has_the_loss_of_each_sample_alone() -> None:
    import torch
    from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=16,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            use_cache=False,
        )
    ).double()
    rows = [torch.randint(16, (length,)).tolist() for length in (2, 3, 30, 5, 7, 4, 12, 9)]
    dataset = [{"input_ids": row, "labels": [-100, *row[1:-1], -100]} for row in rows[1:]]
    dataset.append({"input_ids": rows[0], "labels": rows[0]})
    alone, targets = 0.0, 0
    for sample in dataset:
        row = {name: torch.tensor([values]) for name, values in sample.items()}
        count = int((row["labels"][:, 1:] != -100).sum())
        alone, targets = alone + float(model(**row).loss.detach()) * count, targets + count
    names = {
        "dataset": dataset,
        "collate": DataCollatorWithFlattening(),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.0),
    }
    exec(examples()[2], names)
    assert float(names["loss"].detach()) == pytest.approx(alone / targets, rel=1e-6)
