"""Data of the plain loop: samples, microbatches, and the order of samples."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset
from transformers import AutoProcessor
from transformers.trainer_pt_utils import LengthGroupedSampler

Sample = dict[str, torch.Tensor]
Microbatch = dict[str, torch.Tensor]


class Samples(Dataset[Sample]):
    """Samples of a JSONL file, each through the model's own processor."""

    def __init__(self, data: Path, model: Path) -> None:
        self._root = data.parent
        self._lines = data.read_text().splitlines()
        self._processor: Any = AutoProcessor.from_pretrained(model)
        self._merged = self._processor.image_processor.merge_size**2

    def __len__(self) -> int:
        return len(self._lines)

    def has_image(self, line: int) -> bool:
        return bool(json.loads(self._lines[line]).get("images"))

    def __getitem__(self, line: int) -> Sample:
        record = json.loads(self._lines[line])
        messages = [_message(m) for m in record["messages"]]
        images = [_upright(self._root / path) for path in record.get("images", [])]
        out = self._processor(
            text=[self._text(messages)],
            return_tensors="pt",
            **({"images": [images]} if images else {}),
        )
        grids = out["image_grid_thw"].tolist() if images else []
        sample: Sample = {
            "input_ids": out["input_ids"][0],
            "mm_token_type_ids": out["mm_token_type_ids"][0],
        }
        if images:
            sample |= {key: out[key] for key in ("pixel_values", "image_grid_thw")}
        sample["labels"] = self._labels(sample["input_ids"], messages, grids)
        return sample

    def _labels(
        self, ids: torch.Tensor, messages: list[dict[str, Any]], grids: list[list[int]]
    ) -> torch.Tensor:
        """Every answer up to its end mark; -100 elsewhere."""
        labels = torch.full_like(ids, -100)
        for turn, message in enumerate(messages):
            if message["role"] == "assistant":
                start = self._length(messages[:turn], grids, ask=True)
                last = turn + 1 == len(messages)
                end = len(ids) if last else self._length(messages[: turn + 1], grids)
                ends = (ids[start:end] == self._processor.tokenizer.eos_token_id).nonzero()
                stop = start + int(ends[-1]) + 1
                labels[start:stop] = ids[start:stop]
        return labels

    def _length(
        self, messages: list[dict[str, Any]], grids: list[list[int]], *, ask: bool = False
    ) -> int:
        """Tokens of the first turns; in their text an image is one token."""
        text = self._text(messages, ask=ask)
        images = sum(part["type"] == "image" for m in messages for part in m["content"])
        tokens = len(self._processor.tokenizer(text)["input_ids"])
        return tokens + sum(t * h * w // self._merged - 1 for t, h, w in grids[:images])

    def _text(self, messages: list[dict[str, Any]], *, ask: bool = False) -> str:
        text: str = self._processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=ask
        )
        return text


class InMemory(Dataset[Sample]):
    """Samples that are read and processed before training."""

    def __init__(self, samples: Samples, lines: Iterable[int]) -> None:
        self._samples = {line: samples[line] for line in lines}

    def __getitem__(self, line: int) -> Sample:
        return self._samples[line]


def _message(message: dict[str, str]) -> dict[str, Any]:
    parts: list[dict[str, str]] = []
    for number, piece in enumerate(message["content"].split("<image>")):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": piece}] if piece else []
    return {"role": message["role"], "content": parts}


def _upright(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def pad(samples: Sequence[Sample], size: int) -> list[Microbatch]:
    """Microbatches of `size` samples, each padded to its longest."""
    return [_padded(samples[at : at + size]) for at in range(0, len(samples), size)]


def _padded(samples: Sequence[Sample]) -> Microbatch:
    shape = len(samples), max(len(s["input_ids"]) for s in samples)
    keys = ("input_ids", "attention_mask", "mm_token_type_ids")
    out = {key: torch.zeros(shape, dtype=torch.long) for key in keys}
    out["labels"] = torch.full(shape, -100)
    for row, sample in enumerate(samples):
        length = len(sample["input_ids"])
        out["attention_mask"][row, :length] = 1
        for key in ("input_ids", "mm_token_type_ids", "labels"):
            out[key][row, :length] = sample[key]
    return {**out, **_images(samples)}


def pack(samples: Sequence[Sample], tokens: int) -> list[Microbatch]:
    """Rows of at most `tokens` tokens, or of one longer sample; a full row is not reopened."""
    rows: list[list[Sample]] = []
    room = 0
    for sample in samples:
        length = len(sample["input_ids"])
        if not rows or length > room:
            rows.append([])
            room = tokens
        rows[-1].append(sample)
        room -= length
    return [_packed(row) for row in rows]


def _packed(samples: Sequence[Sample]) -> Microbatch:
    out = {
        key: torch.cat([s[key] for s in samples])[None]
        for key in ("input_ids", "mm_token_type_ids", "labels")
    }
    edges = torch.tensor([0, *(len(s["input_ids"]) for s in samples)]).cumsum(0)
    # Nothing predicts the first token of a document.
    out["labels"][0, edges[:-1]] = -100
    images = torch.tensor([len(s.get("image_grid_thw", ())) for s in samples])
    return {**out, **_images(samples), "edges": edges, "images": images}


def _images(samples: Sequence[Sample]) -> Microbatch:
    seen = [s for s in samples if "pixel_values" in s]
    keys = ("pixel_values", "image_grid_thw") if seen else ()
    return {key: torch.cat([s[key] for s in seen]) for key in keys}


def shares(given: argparse.Namespace, samples: Samples, rank: int, ranks: int) -> list[list[int]]:
    """Lines of the samples of a rank, by step."""
    needed = given.steps * given.global_batch
    share, rest = divmod(given.global_batch, ranks)
    if rest or needed > len(samples):
        raise ValueError(
            f"--global-batch={given.global_batch} --steps={given.steps}: the batch must be a "
            f"multiple of the {ranks} ranks, and the file, of {len(samples)} lines, must have "
            f"{needed}"
        )
    if given.variant != "grouped":
        starts = range(rank * share, needed, given.global_batch)
        return [list(range(start, start + share)) for start in starts]
    if share % given.batch_size:
        raise ValueError(
            f"--batch-size={given.batch_size}: it must divide the {share} samples of a rank"
        )
    # As in the Trainer, consecutive batches of the sampler's order go to consecutive ranks.
    lengths = [len(samples[line]["input_ids"]) for line in range(needed)]
    generator = torch.Generator().manual_seed(given.seed)
    order = list(LengthGroupedSampler(share, lengths=lengths, generator=generator))
    batches = [order[at : at + given.batch_size] for at in range(0, needed, given.batch_size)]
    mine = list(chain.from_iterable(batches[rank::ranks]))
    return [mine[at : at + share] for at in range(0, len(mine), share)]
