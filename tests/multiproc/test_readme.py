"""The example in the README runs as it stands, between two plain processes."""

from __future__ import annotations

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


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_the_readme_example_runs(library: str) -> None:
    producer, consumer = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    name = f"readme-{library}"
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
