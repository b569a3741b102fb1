"""`flowtrain demo`: trains a small Qwen3-VL, and evaluates it with plain Hugging Face."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from flowtrain.config.checks import ConfigError
from flowtrain.config.load import load
from flowtrain.config.schema import RunConfig
from flowtrain.data.digits import write_digits
from flowtrain.train.launch.run import train
from flowtrain.train.state.logs import read_log
from flowtrain.train.state.run_folder import lock_run

_BATCH = 64
# A file in the folder of a demo: the next demo may delete its data and run.
_MARK = ".flowtrain-demo"


def demo(out: Path, overrides: Sequence[str] = (), *, keep_data: bool = False) -> dict[str, Any]:
    """Write the data, train, and read held-out strips by greedy generation.

    Args:
        out: Folder for data and run, created if it does not exist. The run of an earlier demo
            there is deleted.
        overrides: Dotted overrides of `configs/demo.yaml`.
        keep_data: Use the data of an earlier demo instead of deleting it.

    Returns:
        The values in the last line of the demo's output.

    Raises:
        ConfigError: `out` has data or a run that no demo wrote, or a demo is training there.
    """
    started = time.perf_counter()
    config = demo_config(out, overrides)
    prepare_folder(out, keep_data=keep_data)
    assert config.data.path is not None
    if not config.data.path.exists():
        write_digits(out / "data", seed=config.train.seed)
    summary = train(config)
    accuracy, digits = read_heldout(config.run / "final", out / "data" / "heldout.jsonl")
    return {
        "heldout_digit_accuracy": accuracy,
        "heldout_digits": digits,
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
                "bytes_through_pool",
                "packing_gap",
                "dist_ratio_before",
                "dist_ratio_after",
                "encoder_dist_ratio_before",
                "encoder_dist_ratio_after",
                "pad_ratio_before",
                "pad_ratio_after",
            )
        },
        "train_seconds": summary["seconds"],
        "seconds": time.perf_counter() - started,
    }


def prepare_folder(out: Path, *, keep_data: bool) -> None:
    """Create the folder of a demo, or delete what an earlier demo left in it.

    Raises:
        ConfigError: `out` has data or a run that no demo wrote, or a demo is training there.
    """
    data, run = out / "data", out / "run"
    mark = out / _MARK
    if not mark.exists():
        for folder in (data, run):
            if folder.exists():
                raise ConfigError(f"--out={out}: no demo wrote {folder}; choose another folder")
        out.mkdir(parents=True, exist_ok=True)
        mark.touch()
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


def read_heldout(model_folder: Path, data: Path) -> tuple[float, int]:
    """Read strips with plain Hugging Face, without FlowTrain's models and kernels.

    Args:
        model_folder: A folder that `from_pretrained` loads.
        data: JSONL file of held-out strips.

    Returns:
        Accuracy, 1 - edit distance / digits in the references, and the number of those digits.
    """
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(model_folder).eval()
    processor = AutoProcessor.from_pretrained(model_folder)
    processor.tokenizer.padding_side = "left"
    strips = read_log(data)
    # Strips of similar length share a batch: little padding, and generation stops early.
    strips.sort(key=lambda strip: len(strip["messages"][-1]["content"]))
    wrong = digits = 0
    for batch in _batches(strips, _BATCH):
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
        for strip, answer in zip(batch, answers, strict=True):
            truth = strip["messages"][-1]["content"]
            wrong += edit_distance(truth, answer.strip())
            digits += len(truth)
    return 1 - wrong / digits, digits


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
