"""How much faster are later epochs with a cache of frozen features, and how much slower the first?

Trains LLaVA-OneVision, with the widths of the 0.5 B model divided by four, its depths by six, and
tiles of its own size, for three epochs with an empty cache, on one core, so that all work of a step
adds up to its time. Alternated with it run the first epoch without a cache, and each module alone
on the plans of these runs: the encoder, which reads and decodes the images, and the backbone, whose
image rows are in memory. A run without a cache that encodes each image alone must have equal losses
and weights. Features are read from the page cache of the system. The last line is JSON. Exits with
1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from clips import write_clip
from PIL import Image
from tqdm import tqdm

from flowtrain.bench.conditions import conditions
from flowtrain.models.tiny import TinyModel, write_tiny_model
from flowtrain.train.state.logs import METRICS, TIMING, read_log

SCALE = 4
SIZES = TinyModel(
    vision_width=1152 // SCALE,
    vision_depth=4,
    vision_heads=4,
    text_width=896 // SCALE,
    text_depth=4,
    text_heads=7,
    text_kv_heads=1,
    text_intermediate=4864 // SCALE,
    tied=True,
)
TILE, PATCH = 384, 14
VOCABULARY = 151_936 // SCALE
EPOCHS = 3
BATCH = 4
SPEEDUP, ALONE, SLOWDOWN, SHARE = 0.85, 0.9, 0.05, 0.6


@dataclass(frozen=True, kw_only=True)
class Load:
    """Samples of a run, and the parts of the model that they train.

    Attributes:
        visual: `image`, a photo of 1280 x 720 pixels as JPEG, or `video`, a clip of eight frames.
        freeze: Parts that do not train, beside the tower.
    """

    visual: str
    freeze: tuple[str, ...]


LOADS = {
    "images": Load(visual="image", freeze=()),
    "videos, projector alone": Load(visual="video", freeze=("backbone",)),
}


def write_model(folder: Path) -> None:
    """The model of both loads, with tiles and frames of the released size."""
    write_tiny_model(folder, SIZES, family="llava_onevision")
    resolutions = [[TILE, TILE], [TILE, 2 * TILE], [2 * TILE, TILE]]
    size = {"height": TILE, "width": TILE}
    changes: dict[str, dict[str, Any]] = {
        "config.json": {
            "image_grid_pinpoints": resolutions,
            "text_config": {"vocab_size": VOCABULARY, "max_position_embeddings": 1 << 15},
            "vision_config": {
                "image_size": TILE,
                "patch_size": PATCH,
                "intermediate_size": 4304 // SCALE,
            },
        },
        "preprocessor_config.json": {"image_grid_pinpoints": resolutions, "size": size},
        "video_preprocessor_config.json": {"num_frames": 8, "size": size},
        "processor_config.json": {"num_image_tokens": (TILE // PATCH) ** 2},
    }
    for name, fields in changes.items():
        path = folder / name
        tree = json.loads(path.read_text())
        for field, value in fields.items():
            tree[field] = {**tree[field], **value} if isinstance(tree.get(field), dict) else value
        path.write_text(json.dumps(tree, indent=2))


def write_samples(folder: Path, load: Load, samples: int) -> None:
    """Samples of one image or video each, and an answer of 64 characters."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    lines = []
    for number in range(samples):
        if load.visual == "image":
            name = f"{number}.jpg"
            (folder / name).write_bytes(_photo(draw))
        else:
            name = f"{number}.mp4"
            write_clip(folder / name, frames=48, height=480, width=854, fps=12, seed=number)
        answer = "".join(draw.choice(list("0123456789"), 64))
        turns = [
            {"role": "user", "content": f"<{load.visual}>What is it?"},
            {"role": "assistant", "content": answer},
        ]
        lines.append(json.dumps({"messages": turns, f"{load.visual}s": [name]}) + "\n")
    (folder / "train.jsonl").write_text("".join(lines))


def _photo(draw: np.random.Generator) -> bytes:
    """A JPEG with the detail of a photo: about 150 KB."""
    smooth = draw.integers(0, 256, (45, 80, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(smooth).resize((1280, 720), Image.Resampling.BICUBIC))
    noisy = np.clip(pixels + draw.normal(0, 6, pixels.shape), 0, 255).astype(np.uint8)
    written = io.BytesIO()
    Image.fromarray(noisy).save(written, "JPEG", quality=85)
    return written.getvalue()


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Runs of one load.

    Attributes:
        folder: Has the samples; the runs are beside them.
        model: Folder of the model.
        load: The load.
        steps: Steps of an epoch.
    """

    folder: Path
    model: Path
    load: Load
    steps: int

    def train(self, name: str, *, epochs: int, **flow: Any) -> Path:
        """Run `flowtrain train` with one rank; return the folder of the run."""
        run = self.folder / name
        tree = {
            "run": str(run),
            "model": {"config": str(self.model), "freeze": list(self.load.freeze)},
            "data": {
                "path": str(self.folder / "data" / "train.jsonl"),
                "shuffle": False,
                "workers": 1,
            },
            "train": {
                "steps": epochs * self.steps,
                "global_batch": BATCH,
                "microbatch_tokens": 4096,
                "threads": 1,
            },
            "flow": {"ranks": 1, "mode": "frozen", **flow},
            "pool": {"slab_bytes": 1 << 16},
        }
        config = self.folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(tree))
        _python("-m", "flowtrain", "train", str(config))
        return run

    def alone(self, run: Path, module: str) -> list[float]:
        """Seconds of each step of the first epoch of a run, with one of its modules alone."""
        out = run.with_suffix(f".{module}.json")
        words = ("-m", "flowtrain.bench.train.alone", str(run), "--module", module)
        _python(*words, "--steps", str(self.steps), "--out", str(out))
        seconds: list[float] = json.loads(out.read_text())
        return seconds

    def epochs(self, run: Path) -> list[float]:
        """Seconds of each epoch of a run, as `warm` counts them."""
        seconds = [line["seconds"] for line in read_log(run / TIMING)]
        starts = range(0, len(seconds), self.steps)
        return [warm(seconds[start : start + self.steps]) for start in starts]

    def round(self, number: int) -> dict[str, float]:
        """Ratios of one round."""
        cache = {"path": str(self.folder / f"cache-{number}")}
        runs = {
            "default": lambda: self.train(f"default-{number}", epochs=1),
            "cached": lambda: self.train(f"cached-{number}", epochs=EPOCHS, cache=cache),
        }
        names = sorted(runs, reverse=number % 2 == 1)
        found = {name: runs[name]() for name in names}
        first, *others = self.epochs(found["cached"])
        (default,) = self.epochs(found["default"])
        encoder = warm(self.alone(found["cached"], "encoder"))
        backbone = warm(self.alone(found["default"], "backbone"))
        later = statistics.mean(others)
        return {
            "share": encoder / first,
            "speedup": first / later,
            "vs_backbone_alone": backbone / later,
            "first_epoch_slowdown": first / default - 1,
            "first_s": first,
            "later_s": later,
            "encoder_alone_s": encoder,
            "backbone_alone_s": backbone,
        }

    def equal(self) -> bool:
        """Whether the first cached run has the numbers of one that encodes each image alone."""
        plain = self.train("plain", epochs=EPOCHS, item_tokens=1)
        return _numbers(plain) == _numbers(self.folder / "cached-0")


def warm(seconds: Sequence[float]) -> float:
    """Seconds of the steps of an epoch without its first, in which a run starts."""
    return sum(seconds[1:])


def _numbers(run: Path) -> tuple[list[Any], bytes]:
    """Losses and norms of all steps, and the bytes of the trained weights."""
    lines = [(line["loss"], line["grad_norm"]) for line in read_log(run / METRICS)]
    return lines, (run / "final" / "model.safetensors").read_bytes()


def _python(*words: str) -> None:
    done = subprocess.run([sys.executable, *words], input="\n", capture_output=True, text=True)
    if done.returncode != 0:
        last = "\n".join(done.stderr.splitlines()[-15:])
        raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}:\n{last}")


def measured(bench: Bench, rounds: int, *, silent: bool) -> dict[str, Any]:
    """Medians over the rounds, their ranges, and whether each bar is reached."""
    found = [bench.round(number) for number in tqdm(range(rounds), disable=silent)]
    medians = {name: statistics.median(each[name] for each in found) for name in found[0]}
    ranges = {
        f"{name}_range": [round(pick(each[name] for each in found), 3) for pick in (min, max)]
        for name in ("speedup", "vs_backbone_alone", "first_epoch_slowdown")
    }
    needed = SPEEDUP / (1 - medians["share"])
    result = {name: round(value, 3) for name, value in medians.items()}
    return {**result, "needed_speedup": round(needed, 3), **ranges, "equal": bench.equal()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each load")
    parser.add_argument("--samples", type=int, default=16, help="samples of an epoch")
    parser.add_argument("--load", choices=LOADS, action="append", help="only these loads")
    given = parser.parse_args()
    before = conditions()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    loads = {}
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model"
        write_model(model)
        for number, chosen in enumerate(given.load or LOADS):
            folder = Path(name) / str(number)
            folder.mkdir()
            write_samples(folder / "data", LOADS[chosen], given.samples)
            bench = Bench(
                folder=folder, model=model, load=LOADS[chosen], steps=given.samples // BATCH
            )
            loads[chosen] = measured(bench, given.rounds, silent=given.json)
            if not given.json:
                print(chosen, json.dumps(loads[chosen], indent=2))
    result = {
        "bench": "cache",
        "loads": loads,
        "largest_share": max(load["share"] for load in loads.values()),
        "equal": all(load["equal"] for load in loads.values()),
        "first_epoch_slowdown": max(load["first_epoch_slowdown"] for load in loads.values()),
        **before,
    }
    print(json.dumps(result))
    reached = (
        result["equal"]
        and result["first_epoch_slowdown"] <= SLOWDOWN
        and result["largest_share"] >= SHARE
        and all(
            load["speedup"] >= load["needed_speedup"] and load["vs_backbone_alone"] >= ALONE
            for load in loads.values()
        )
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
