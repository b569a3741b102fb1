"""Images from files to the pixels of a model, by the workers of a run and by a `DataLoader`."""

from __future__ import annotations

import io
import json
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from transformers import AutoImageProcessor
from transformers.image_utils import load_image

from flowtrain.config.data import DataConfig
from flowtrain.cost.flops import Grid
from flowtrain.data import VlmSamples
from flowtrain.data.digits import write_digits
from flowtrain.data.pixel_maker import PixelMaker, SamplePixels
from flowtrain.data.samples import SampleReader
from flowtrain.data.workers import WorkerPool
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import write_tiny_model

# Sizes of the released Qwen3-VL models.
PATCH = 16
SIZE = {"shortest_edge": 1 << 16, "longest_edge": 1 << 24}
WIDTH, HEIGHT = 1280, 720
WORKERS = 2
CPU: Any = {"dtype": torch.float32, "device": torch.device("cpu")}
# Of the demo.
BATCH, STEPS = 32, 60
# Images that are read ahead, of each worker; the default of a DataLoader.
AHEAD = 2


def write_images(folder: Path, number: int) -> DataConfig:
    """Write JPEGs, a JSONL file that names them, and a model with Qwen3-VL's image processor."""
    model = folder / "model"
    write_tiny_model(model)
    for name, changed in {
        "config.json": {"vision_config": {"patch_size": PATCH}},
        "preprocessor_config.json": {"patch_size": PATCH, "size": SIZE},
    }.items():
        tree = json.loads((model / name).read_text())
        for key, value in changed.items():
            tree[key] = tree[key] | value if isinstance(value, dict) else value
        (model / name).write_text(json.dumps(tree))
    draw = np.random.default_rng(0)
    lines = []
    for n in range(number):
        path = folder / f"{n}.jpg"
        path.write_bytes(_jpeg(draw))
        turns = [("user", "<image>Describe it."), ("assistant", "A text.")]
        messages = [{"role": role, "content": content} for role, content in turns]
        lines.append(json.dumps({"messages": messages, "images": [path.name]}) + "\n")
    (folder / "images.jsonl").write_text("".join(lines))
    return DataConfig(path=folder / "images.jsonl")


def _jpeg(draw: np.random.Generator) -> bytes:
    coarse = Image.fromarray(draw.integers(0, 256, (HEIGHT // 20, WIDTH // 20, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT))).astype(int)
    noisy = (smooth + draw.integers(-12, 12, smooth.shape)).clip(0, 255).astype(np.uint8)
    written = io.BytesIO()
    Image.fromarray(noisy).save(written, "JPEG", quality=90)
    return written.getvalue()


class Processed(Dataset[torch.Tensor]):
    """The pixels of each image, made by the family's processor."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self._processor: Any = AutoImageProcessor.from_pretrained(folder / "model")

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> torch.Tensor:
        image = load_image(str(self._folder / f"{index}.jpg"))
        pixels: torch.Tensor = self._processor(images=[image], return_tensors="pt")["pixel_values"]
        return pixels


def by_loader(dataset: Processed) -> Iterator[torch.Tensor]:
    """Pixels of each image, by a `DataLoader`."""
    yield from DataLoader(dataset, batch_size=None, num_workers=WORKERS, prefetch_factor=AHEAD)


def by_samples(samples: VlmSamples) -> Iterator[torch.Tensor]:
    """Pixels of each image, by a `DataLoader` on `VlmSamples`."""
    options: dict[str, Any] = {"num_workers": WORKERS, "prefetch_factor": AHEAD}
    for sample in DataLoader(samples, batch_size=None, **options):
        yield sample["pixel_values"]


def by_run(
    pool: WorkerPool, make: PixelMaker, grids: list[Grid]
) -> Iterator[tuple[torch.Tensor, int]]:
    """Pixels of each image, by the workers of a run, and the bytes that were sent for it."""
    requests = ((n, 0, grid) for n, grid in enumerate(grids))
    calls = deque(pool.submit("pixels", *each) for each in islice(requests, WORKERS * AHEAD))
    for grid in grids:
        read: SamplePixels = calls.popleft().result(60)
        calls.extend(pool.submit("pixels", *each) for each in islice(requests, 1))
        assert read.values is not None
        yield make([read], [grid], **CPU), read.values.nbytes


def loop_share(folder: Path) -> dict[str, float]:
    """Percent of a step of the demo that the thread of the training loop spends on reading.

    Requests and waits for images are taken from the events of a run, and the floats of its images
    are made once more, with a clock.
    """
    write_digits(folder / "data", train=640, heldout=0)
    tree = {
        "run": str(folder / "run"),
        "model": {"config": str(folder / "data" / "model")},
        "data": {"path": str(folder / "data" / "train.jsonl"), "workers": 1},
        "train": {"steps": STEPS, "global_batch": BATCH, "microbatch_tokens": 2048, "threads": 1},
        "flow": {"layout": "colocated", "ranks": 2},
    }
    (folder / "run.yaml").write_text(json.dumps(tree))
    command = [sys.executable, "-m", "flowtrain", "train", str(folder / "run.yaml")]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    summary = json.loads(out.splitlines()[-1])
    ranks = summary["activity_seconds"].values()
    total = sum(sum(seconds.values()) for seconds in ranks)
    waited = sum(seconds["wait_load"] for seconds in ranks)
    requested = sum(seconds["load"] for seconds in summary["activity_cpu_seconds"].values())
    model = folder / "data" / "model"
    reader = SampleReader(model, DataConfig(path=folder / "data" / "train.jsonl"), 1 << 20)
    grids = [reader.meta(sample).grids[0] for sample in range(BATCH)]
    values = [reader.pixels(sample, 0, grid) for sample, grid in enumerate(grids)]
    make = PixelMaker(family_for(model))
    taken = []
    for _ in range(100):
        start = time.thread_time()
        make(values, grids, **CPU)
        taken.append(time.thread_time() - start)
    shares = {
        "requests": requested / total,
        "waits": waited / total,
        "floats": statistics.median(taken) * STEPS / total,
    }
    return {f"{name}_percent": 100 * share for name, share in shares.items()}


def per_second(images: Iterator[Any], number: int) -> float:
    """Images a second, behind the first ones: all workers have started then."""
    first = WORKERS * AHEAD
    for _ in islice(images, first):
        pass
    start = time.perf_counter()
    for _ in images:
        pass
    return (number - first) / (time.perf_counter() - start)


def measure_images(folder: Path, *, number: int, rounds: int) -> dict[str, Any]:
    """Images a second of both, alternated, and whether their pixels are equal to the last bit."""
    data = write_images(folder, number)
    make = partial(SampleReader, folder / "model", data, 1 << 20)
    reader = make()
    grids = [reader.meta(sample).grids[0] for sample in range(number)]
    dataset = Processed(folder, number)
    pixels_of = PixelMaker(family_for(folder / "model"))
    samples = VlmSamples(folder / "model", data)
    run, loader, plain = [], [], []
    for _ in range(rounds):
        with WorkerPool(make, WORKERS, fork=True) as pool:
            run.append(per_second(by_run(pool, pixels_of, grids), number))
        loader.append(per_second(by_loader(dataset), number))
        plain.append(per_second(by_samples(samples), number))
    with WorkerPool(make, WORKERS, fork=True) as pool:
        made = list(by_run(pool, pixels_of, grids))
    pairs = zip(made, (dataset[n] for n in range(number)), strict=True)
    equal = all(torch.equal(ours, theirs) for (ours, _), theirs in pairs)
    pixels = sum(rows * columns for _, rows, columns in grids) * PATCH**2
    return {
        "size": [WIDTH, HEIGHT],
        "workers": WORKERS,
        "run_per_s": statistics.median(run),
        "loader_per_s": statistics.median(loader),
        "samples_per_s": statistics.median(plain),
        "run_times": statistics.median(a / b for a, b in zip(run, loader, strict=True)),
        "samples_times": statistics.median(a / b for a, b in zip(plain, loader, strict=True)),
        "equal": equal,
        "bytes_sent_per_pixel": sum(sent for _, sent in made) / pixels,
        "loader_bytes_per_pixel": sum(each.nbytes for each, _ in made) / pixels,
        "loop_in_demo": loop_share(folder / "demo"),
    }
