"""Measure how long samples take to read, and how a run starts on a data set of many lines.

`forms`: JPEGs of 640 x 480 pixels in random order, as files that a JSONL file names, and within the
records of each format. Median microseconds of a sample: `plan` for its sizes and tokens, `header`
for its record and the header of its image alone, `pixels` for the 8-bit values of the image. In
`parquet_unkept` no row group is kept for the next sample, as with shuffled files far larger than
256 MiB.

`lines`: `flowtrain train` with two colocated ranks on a JSONL file of short texts, with few lines
and with `--lines`: seconds from the start of the command to the first step in `metrics.jsonl`, and
how much more anonymous memory (proportional set size, the largest that was seen) all processes of
the run together have, divided by the ranks. The file is in the page cache.

`images`: images a second from JPEG files of 1280 x 720 to the pixels that Qwen3-VL takes, by the
data path of a run, by a `DataLoader` with the family's processor and as many workers, and by one
with `VlmSamples`, in turns: medians, and those of the ratios to the second. `bytes_sent_per_pixel`
are what a worker sends for a pixel of the scaled image. `loop_in_demo` is the share of a step of
the demo that the thread of the training loop spends on reading: requests, waits for images, and
their floats.

The last line is JSON.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import numpy as np
import pyarrow
from image_paths import measure_images
from PIL import Image
from pyarrow import parquet

from flowtrain.bench.conditions import conditions
from flowtrain.config.data import DataConfig
from flowtrain.data import records
from flowtrain.data.conversation import read_conversation
from flowtrain.data.images import upright_size
from flowtrain.data.records import Dataset
from flowtrain.data.samples import SampleReader
from flowtrain.models.tiny import write_tiny_model

IMAGES = 300
ANSWER = "A text of some length that describes what can be seen here. " * 5
FORMS = {
    "files": "files.jsonl",
    "save_to_disk": "saved",
    "parquet": "rows.parquet",
    "parquet_unkept": "rows.parquet",
    "jsonl_base64": "base64.jsonl",
}
PARTS = ("forms", "lines", "images")
RANKS = 2


def turns(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def write_forms(folder: Path) -> float:
    """Write the same samples in each form; returns the mean bytes of an image."""
    draw = np.random.default_rng(0)
    contents = []
    for number in range(IMAGES):
        coarse = Image.fromarray(draw.integers(0, 256, (30, 40, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((640, 480))).astype(int)
        noisy = (smooth + draw.integers(-12, 12, smooth.shape)).clip(0, 255).astype(np.uint8)
        path = folder / f"{number}.jpg"
        Image.fromarray(noisy).save(path, quality=90)
        contents.append(path.read_bytes())
    messages = turns("<image>Describe it.", ANSWER)
    named = [{"messages": messages, "images": [str(folder / f"{n}.jpg")]} for n in range(IMAGES)]
    held = [{"messages": messages, "images": [{"bytes": content}]} for content in contents]
    text = [
        {"messages": messages, "images": [{"bytes": base64.b64encode(content).decode()}]}
        for content in contents
    ]
    for name, rows in (("files.jsonl", named), ("base64.jsonl", text)):
        folder.joinpath(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(
        pyarrow.Table.from_pylist(held), folder / "rows.parquet", row_group_size=100
    )
    datasets.disable_progress_bars()
    column = datasets.List(datasets.Image())
    made = datasets.Dataset.from_list(named).cast_column("images", column)
    made.save_to_disk(folder / "saved")
    return statistics.fmean(map(len, contents))


def median_us(call: Callable[[int], Any], samples: list[int]) -> float:
    taken = []
    for sample in samples:
        start = time.perf_counter()
        call(sample)
        taken.append(1e6 * (time.perf_counter() - start))
    return statistics.median(taken)


def measure_form(folder: Path, name: str) -> dict[str, float]:
    """Median microseconds of the parts of a sample."""
    data = DataConfig(path=folder / name)
    reader, dataset = SampleReader(folder / "model", data, 1 << 20), Dataset(data)
    order = list(range(IMAGES))
    random.Random(0).shuffle(order)
    grids = [reader.meta(sample).grids for sample in range(IMAGES)]

    def header(sample: int) -> None:
        [image] = read_conversation(dataset.record(sample), root=folder, where="").visuals
        upright_size(image, "")

    return {
        "plan": median_us(reader.meta_and_text, order),
        "header": median_us(header, order),
        "pixels": median_us(lambda n: reader.pixels(n, 0, grids[n][0]), order[:60]),
    }


def write_lines(path: Path, number: int) -> None:
    with path.open("w") as file:
        for first in range(0, number, 10_000):
            file.writelines(
                json.dumps({"messages": turns(f"What is {n} plus {n % 7}?", str(n + n % 7))}) + "\n"
                for n in range(first, min(first + 10_000, number))
            )


def processes(root: int) -> Iterator[int]:
    """A process and its descendants."""
    yield root
    try:
        children = Path(f"/proc/{root}/task").glob("*/children")
        found = [int(child) for file in children for child in file.read_text().split()]
    except OSError:
        return  # It has ended.
    for child in found:
        yield from processes(child)


def anonymous_mib(root: int) -> float:
    """Anonymous memory of a process and its descendants, each page counted once."""
    total = 0
    for pid in processes(root):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(li.split()[1]) for li in text.splitlines() if li.startswith("Pss_Anon"))
    return total / 1024


def start_run(folder: Path, lines: int) -> dict[str, float]:
    """Seconds to the first step of a run, and its largest anonymous memory up to it in MiB."""
    path, run = folder / "lines.jsonl", folder / "run"
    write_lines(path, lines)
    tree = {
        "run": str(run),
        "model": {"config": str(folder / "model")},
        "data": {"path": str(path), "workers": 1},
        "train": {"steps": 1, "global_batch": 8, "microbatch_tokens": 512, "threads": 1},
        "flow": {"layout": "colocated", "ranks": RANKS},
    }
    config = folder / "run.yaml"
    config.write_text(json.dumps(tree))
    path.read_bytes()  # Into the page cache.
    start, metrics, peak = time.monotonic(), run / "metrics.jsonl", 0.0
    command = [sys.executable, "-m", "flowtrain", "train", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not (metrics.exists() and metrics.stat().st_size):
            peak = max(peak, anonymous_mib(process.pid))
            if process.poll() is not None:
                assert process.stderr is not None
                sys.exit(f"the run ended before its first step: {process.stderr.read().decode()}")
            time.sleep(0.02)
        seconds = time.monotonic() - start
        process.communicate()
    shutil.rmtree(run)
    return {"seconds": seconds, "mib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--lines", type=int, default=10_000_000, help="0.1 GB per million in TMPDIR"
    )
    parser.add_argument("--images", type=int, default=100, help="of a round of images")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_model(folder / "model")
        if "forms" in given.parts:
            found["image_bytes"] = round(write_forms(folder))
            for form, file in FORMS.items():
                kept = 1 if form == "parquet_unkept" else records.parquet._CACHE_BYTES
                with mock.patch.object(records.parquet, "_CACHE_BYTES", kept):
                    found[form] = measure_form(folder, file)
        if "images" in given.parts:
            (folder / "images").mkdir()
            found["images"] = measure_images(folder / "images", number=given.images, rounds=5)
        if "lines" in given.parts:
            few, many = (start_run(folder, lines) for lines in (1_000, given.lines))
            found["lines"] = {
                "lines": given.lines,
                "first_step_s": many["seconds"],
                "later_s": many["seconds"] - few["seconds"],
                "more_mib_per_rank": (many["mib"] - few["mib"]) / RANKS,
            }
    print(json.dumps({"bench": "data", **found, "conditions": conditions()}))


if __name__ == "__main__":
    main()
