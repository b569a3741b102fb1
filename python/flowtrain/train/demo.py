"""`flowtrain demo`: trains a small Qwen3-VL, and evaluates it with plain Hugging Face.

The layout of the run is chosen from costs. On a machine with few cores its ranks are colocated, and
an image rarely crosses the pool. So the first steps are trained again with an encoder rank and a
backbone rank, and the losses compared.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from flowtrain import progress
from flowtrain.config.checkpoint import CheckpointConfig
from flowtrain.config.checks import ConfigError, require
from flowtrain.config.evaluation import EvalConfig
from flowtrain.config.layout import RankLayout
from flowtrain.config.load import load
from flowtrain.config.schema import RunConfig
from flowtrain.config.track import TrackConfig
from flowtrain.data.digits import write_digits
from flowtrain.train.launch.run import train
from flowtrain.train.state.atomic import PART
from flowtrain.train.state.logs import METRICS, read_log
from flowtrain.train.state.run_folder import lock_run
from flowtrain.train.state.strips import ReadStrip, write_strips

_BATCH = 64
_SHOWN = 16
_DECOUPLED_STEPS = 30
# A file in the folder of a demo: the next demo may delete its data and run.
_MARK = ".flowtrain-demo"


def demo(out: Path, overrides: Sequence[str] = (), *, keep_data: bool = False) -> dict[str, Any]:
    """Write the data, train, train the first steps decoupled, and read held-out strips.

    Args:
        out: Folder for data and runs, created if it does not exist. The runs of an earlier demo
            there are deleted.
        overrides: Dotted overrides of `configs/demo.yaml`.
        keep_data: Use the data of an earlier demo instead of deleting it.

    Returns:
        The values in the last line of the demo's output.

    Raises:
        ConfigError: `out` has data or a run that no demo wrote, or a demo is training there; the
            overrides name other data, or held-out strips of kept data are missing.
    """
    started = time.perf_counter()
    config = demo_config(out, overrides)
    data = out / "data"
    _check_data(config, data)
    prepare_folder(out, keep_data=keep_data)
    if not data.exists():
        _write_data(data, seed=config.train.seed)
    heldout = data / "heldout.jsonl"
    require(
        heldout.is_file() and heldout.stat().st_size > 0,
        f"{heldout}: the held-out strips are missing, and the demo reads them at its end; leave "
        "--keep-data out, which writes the data anew",
    )
    summary = train(config)
    decoupled = train_decoupled(config, summary["steps"])
    reading = read_heldout(config.run / "final", heldout)
    write_strips(config.run, reading.strips)
    return {
        "run": str(config.run),
        "heldout_digit_accuracy": reading.accuracy,
        "heldout_digits": reading.digits,
        **{
            key: summary[key]
            for key in (
                "encoder_weight_change",
                "backbone_weight_change",
                "layout",
                "encoder_ranks",
                "backbone_ranks",
                "mode",
                "loss",
                "tokens_per_s",
                "mfu",
                "peak_flops",
                "packing_gap",
                "dist_ratio_before",
                "dist_ratio_after",
                "encoder_dist_ratio_before",
                "encoder_dist_ratio_after",
                "pad_ratio_before",
                "pad_ratio_after",
            )
        },
        **decoupled,
        "train_seconds": summary["seconds"],
        "seconds": time.perf_counter() - started,
    }


def _check_data(config: RunConfig, data: Path) -> None:
    """Require that the demo trains on its own data: at its end it reads strips like these.

    Raises:
        ConfigError: It would train on other data.
    """
    given = config.data.path
    name = config.data.name if given is None else f"data.path={given}"
    require(
        given is not None and given.resolve() == (data / "train.jsonl").resolve(),
        f"{name}: the demo trains on strips of digits that it writes to {data}; to train on other "
        "data, write a run.yaml, such as those of examples/finetune, and call `flowtrain train "
        "run.yaml`",
    )


def _write_data(data: Path, *, seed: int) -> None:
    """Write the data, completely or not at all: `--keep-data` would train on a part of them."""
    part = data.with_name(data.name + PART)
    if part.exists():
        shutil.rmtree(part)
    write_digits(part, seed=seed)
    part.rename(data)


def train_decoupled(config: RunConfig, steps: int) -> dict[str, Any]:
    """Train the first steps of a run again, with an encoder rank and a backbone rank.

    Every embedding and every gradient of an embedding crosses the pool then. The losses differ from
    those of the run by rounding alone.

    Args:
        config: The run, which has ended.
        steps: Its number of steps.

    Returns:
        `decoupled_steps`, their number; `decoupled_loss_difference`, the largest difference of a
        loss relative to the run's; and `bytes_through_pool` of those steps.
    """
    count = min(_DECOUPLED_STEPS, steps)
    again = replace(
        config,
        run=_decoupled_run(config.run),
        train=replace(config.train, steps=count, epochs=0.0),
        optim=replace(config.optim, schedule_steps=config.schedule_steps or steps),
        flow=config.flow.with_layout(RankLayout.decoupled(1, 1)),
        eval=EvalConfig(),
        checkpoint=CheckpointConfig(),
        track=TrackConfig(),
    )
    print(
        f"flowtrain: the first {count} steps again, with 1 encoder rank and 1 backbone rank",
        file=sys.stderr,
    )
    summary = train(again)
    losses = (
        [step["loss"] for step in read_log(run / METRICS)[:count]]
        for run in (config.run, again.run)
    )
    return {
        "decoupled_steps": count,
        "decoupled_loss_difference": max(abs(b / a - 1) for a, b in zip(*losses, strict=True)),
        "bytes_through_pool": summary["bytes_through_pool"],
    }


def _decoupled_run(run: Path) -> Path:
    return run.with_name(run.name + "-decoupled")


def prepare_folder(out: Path, *, keep_data: bool) -> None:
    """Create the folder of a demo, or delete what an earlier demo left in it.

    Raises:
        ConfigError: `out` has data or a run that no demo wrote, or a demo is training there.
    """
    data, run = out / "data", out / "run"
    runs = (run, _decoupled_run(run))
    mark = out / _MARK
    if not mark.exists():
        for folder in (data, *runs):
            if folder.exists():
                raise ConfigError(f"--out={out}: no demo wrote {folder}; choose another folder")
        out.mkdir(parents=True, exist_ok=True)
        mark.touch()
    for run in runs:
        if run.exists():
            with lock_run(run):
                shutil.rmtree(run)
    if data.exists() and not keep_data:
        shutil.rmtree(data)


def demo_config(out: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The demo's configuration, with its data and run under `out`."""
    out = out.resolve()
    return load(
        Path(str(files("flowtrain").joinpath("configs/demo.yaml"))),
        [
            f"run={_quoted(out / 'run')}",
            f"model.config={_quoted(out / 'data' / 'model')}",
            f"data.path={_quoted(out / 'data' / 'train.jsonl')}",
            *overrides,
        ],
    )


def _quoted(path: Path) -> str:
    """A path as a YAML string: a name may have characters that are special in YAML."""
    return json.dumps(str(path))


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model has read."""

    accuracy: float
    """1 - edit distance / digits in the references."""
    digits: int
    """Number of these digits."""
    strips: list[ReadStrip]
    """Some of the strips, from short to long ones."""


def read_heldout(model_folder: Path, data: Path) -> Reading:
    """Read strips with plain Hugging Face, without FlowTrain's models and kernels.

    Args:
        model_folder: A folder that `from_pretrained` loads.
        data: JSONL file of held-out strips.
    """
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(model_folder).eval()
    processor = AutoProcessor.from_pretrained(model_folder)
    processor.tokenizer.padding_side = "left"
    strips = read_log(data)
    # Strips of similar length share a batch: little padding, and generation stops early.
    strips.sort(key=lambda strip: len(strip["messages"][-1]["content"]))
    read: list[str] = []
    for batch in progress.over("reading held-out strips", list(_batches(strips, _BATCH))):
        inputs = processor(
            text=[_prompt(processor, strip) for strip in batch],
            images=[_images(strip, data.parent) for strip in batch],
            padding=True,
            return_tensors="pt",
        )
        longest = len(batch[-1]["messages"][-1]["content"])
        with torch.inference_mode():
            out = model.generate(**inputs, do_sample=False, max_new_tokens=longest + 2)
        answers = processor.batch_decode(
            out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        read += [answer.strip() for answer in answers]
    truths = [strip["messages"][-1]["content"] for strip in strips]
    digits = sum(map(len, truths))
    return Reading(
        accuracy=1 - sum(map(edit_distance, truths, read)) / digits,
        digits=digits,
        strips=[
            ReadStrip(data.parent.joinpath(*strip["images"]).read_bytes(), truth, answer)
            for strip, truth, answer in list(zip(strips, truths, read, strict=True))[
                :: max(1, len(strips) // _SHOWN)
            ]
        ],
    )


def edit_distance(a: str, b: str) -> int:
    """Minimum number of insertions, deletions and substitutions from a to b (Levenshtein 1966)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def _batches(strips: list[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(strips), size):
        yield strips[start : start + size]


def _prompt(processor: Any, strip: dict[str, Any]) -> str:
    [question] = [m["content"] for m in strip["messages"] if m["role"] == "user"]
    content = [{"type": "image"}, {"type": "text", "text": question.replace("<image>", "")}]
    text: str = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    return text


def _images(strip: dict[str, Any], root: Path) -> list[Any]:
    from PIL import Image

    return [Image.open(root / path).convert("RGB") for path in strip["images"]]
