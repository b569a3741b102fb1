"""Measure what packed rows win over padded batches for an unmodified Hugging Face VLM.

One process runs the same samples forward and backward, in alternated rounds: `padded`, a DataLoader
whose batches are padded to their longest sample; `packed_sdpa`, rows of `PackedLoader` and
`VlmCollator` under the dense mask of transformers; and `packed`, the same rows with FlowTrain's
attention, document by document. Samples are processed before the first round. Rates are tokens
without padding per second, medians over the rounds; `vs_padded_*` is the median of the ratios
within a round. Weights do not change, so that the mean loss of each round must be the same: the
command exits with 1 if it differs by more than 1e-5. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from reference_loop import Samples
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForImageTextToText

from flowtrain.bench.conditions import conditions
from flowtrain.data import PackedLoader, VlmCollator
from flowtrain.data.digits import write_digits

VARIANTS = ("padded", "packed_sdpa", "packed")
LIMIT = 1e-5
Inputs = dict[str, Any]


def pad(samples: Sequence[Inputs]) -> Inputs:
    """Pad token rows to the longest, and join image tensors."""
    values = {"input_ids": 0, "attention_mask": 0, "mm_token_type_ids": 0, "labels": -100}
    batch: Inputs = {
        name: pad_sequence([s[name][0] for s in samples], batch_first=True, padding_value=value)
        for name, value in values.items()
    }
    images = [sample for sample in samples if "pixel_values" in sample]
    for name in ("pixel_values", "image_grid_thw"):
        if images:
            batch[name] = torch.cat([sample[name] for sample in images])
    return {**batch, "use_cache": False}


def run(model: Any, batches: Iterable[Inputs]) -> tuple[float, float]:
    """Seconds of an epoch, and the mean loss over its target tokens."""
    loss_sum, targets = 0.0, 0
    start = time.perf_counter()
    for batch in batches:
        count = int((batch["labels"][:, 1:] != -100).sum())
        loss = model(**batch).loss * count
        loss.backward()
        loss_sum += loss.item()
        targets += count
        model.zero_grad()
    return time.perf_counter() - start, loss_sum / targets


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as path:
        root = Path(path)
        write_digits(root, train=given.samples, heldout=0, text_only=0.1, multi_image=0.2)
        read = Samples(root / "train.jsonl", root / "model")
        samples = [read[index] for index in range(given.samples)]
        tokens = [sample["input_ids"].numel() for sample in samples]
        attention = {"text_config": "flowtrain_varlen", "vision_config": "sdpa"}
        collate = VlmCollator(root / "model", documents=True)
        models = {}
        for name in VARIANTS:
            torch.manual_seed(0)
            chosen: Any = attention if name == "packed" else "sdpa"
            config = AutoConfig.from_pretrained(root / "model")  # Each keeps its own attention.
            models[name] = AutoModelForImageTextToText.from_config(
                config, attn_implementation=chosen
            ).train()
    rows = PackedLoader(
        samples,
        given.batch_size,
        max_tokens=max(*tokens, int(1.25 * statistics.fmean(tokens) * given.batch_size)),
        collate_fn=collate,
        rank=0,
        ranks=1,
    )
    batches = {
        "padded": list(DataLoader(samples, given.batch_size, collate_fn=pad)),  # type: ignore[arg-type]
        "packed": [row for row, _ in rows],
    }
    batches["packed_sdpa"] = batches["packed"]
    for name in VARIANTS:  # Warm up.
        run(models[name], batches[name][:2])
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    losses: dict[str, float] = {}
    for number in range(given.rounds):
        first = number % len(VARIANTS)
        for name in VARIANTS[first:] + VARIANTS[:first]:
            seconds, losses[name] = run(models[name], batches[name])
            rates[name].append(sum(tokens) / seconds)
    difference = max(abs(loss / losses["padded"] - 1) for loss in losses.values())
    found: dict[str, Any] = {f"tokens_per_s_{n}": statistics.median(rates[n]) for n in VARIANTS}
    for name in VARIANTS[1:]:
        ratios = [mine / base for mine, base in zip(rates[name], rates["padded"], strict=True)]
        found[f"vs_padded_{name}"] = statistics.median(ratios)
        found[f"vs_padded_{name}_range"] = [min(ratios), max(ratios)]
    padded = sum(batch["input_ids"].numel() for batch in batches["padded"])
    found |= {"padding": 1 - sum(tokens) / padded, "loss_difference": difference}
    if not given.json:
        for key, value in found.items():
            print(f"{key:<28} {value}")
    options = {name: value for name, value in vars(given).items() if name != "json"}
    print(json.dumps({**options, **found, "torch": torch.__version__, "conditions": conditions()}))
    return int(difference > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
