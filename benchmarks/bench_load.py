"""How much memory does it take to load a part of a model from its folder?

Writes the folder of a model of 0.3 billion parameters with random weights in bfloat16. Fresh
processes load parts of it in float32: each side alone, and both as a colocated rank does,
replicated and sharded over two ranks. The growth of a process's anonymous memory at its peak is
divided by the bytes of the weights that it holds at the end; files that are mapped do not count.
The plain alternative loads the whole model with transformers and drops what is not needed. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import tempfile
import time
from contextlib import ExitStack
from itertools import compress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from model_sizes import SIZES
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from tqdm import tqdm
from transformers import AutoModelForImageTextToText

from flowtrain.bench.conditions import conditions
from flowtrain.cost.flops import Side
from flowtrain.models.family import Family
from flowtrain.models.loading import load_weights
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, TinyModel, write_tiny_model

VOCABULARY = 1 << 16
FILE_BYTES = 128 << 20
PARTS: dict[str, tuple[Side, ...]] = {
    "encoder": ("encoder",),
    "backbone": ("backbone",),
    "colocated": ("encoder", "backbone"),
}
BAR = 1.15
LIMIT_S = 300
CPU = torch.device("cpu")


def write_model(folder: Path, sizes: TinyModel, *, vocabulary: int | None = None) -> int:
    """Write a model with random weights, file by file; return its number of parameters."""
    write_tiny_model(folder, sizes)
    if vocabulary is not None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config["text_config"]["vocab_size"] = vocabulary
        path.write_text(json.dumps(config))
    shapes = {n: p.shape for n, p in family_for(folder).meta_model().named_parameters()}
    index: dict[str, str] = {}
    weights: dict[str, torch.Tensor] = {}

    def write() -> None:
        file = f"model-{len(set(index.values())):05}.safetensors"
        save_file(weights, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(weights, file))
        weights.clear()

    for name, shape in shapes.items():
        weights[name] = torch.randn(shape, dtype=torch.bfloat16)
        if sum(value.nbytes for value in weights.values()) > FILE_BYTES:
            write()
    write()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    return sum(map(math.prod, shapes.values()))


def replicated(family: Family, side: Side, folder: Path) -> torch.nn.Module:
    return family.build(side, weights=folder, seed=0, dtype=torch.float32, device=CPU)


def sharded(family: Family, side: Side, folder: Path) -> torch.nn.Module:
    meta = torch.device("meta")
    module = family.build(side, weights=folder, seed=0, dtype=torch.float32, device=meta)
    for part in list(module.modules()):
        if isinstance(part, torch.nn.ModuleList):
            for layer in part:
                fully_shard(layer)
    fully_shard(module)
    load_weights(module, folder, family, device=CPU, seed=0)
    return module


def plain(family: Family, side: Side, folder: Path) -> torch.nn.Module:
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    if side == "encoder":
        del model.model.language_model, model.lm_head
    else:
        del model.model.visual
    return model


WAYS = {"replicated": (replicated, 1), "sharded": (sharded, 2), "plain": (plain, 1)}


def load(way: str, part: str, folder: Path, rank: int, pipe: Connection) -> None:
    """Load when told to, and tell the bytes of the weights."""
    build, ranks = WAYS[way]
    if ranks > 1:
        store = dist.FileStore(str(folder / f"{part}.store"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    # Imports and the memory of gloo are not counted.
    for side in PARTS[part]:
        build(family_for(folder / "tiny"), side, folder / "tiny")
    family = family_for(folder / "model")
    pipe.send("ready")
    pipe.recv()
    modules = [build(family, side, folder / "model") for side in PARTS[part]]
    parameters = [value for module in modules for value in module.parameters()]
    held = [p.to_local() if isinstance(p, DTensor) else p for p in parameters]
    pipe.send(sum(value.nbytes for value in held))
    pipe.recv()
    if ranks > 1:
        dist.destroy_process_group()


def anonymous_bytes(process: SpawnProcess) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{process.name}: it has ended, or Linux is older than 4.5")
    return int(found[1]) << 10


def growth(way: str, part: str, folder: Path) -> dict[str, Any]:
    """Growth of the anonymous memory of each rank at its peak, over the bytes that it holds."""
    context = multiprocessing.get_context("spawn")
    ranks, pipes = [], []
    with ExitStack() as stack:
        for rank in range(WAYS[way][1]):
            pipe, theirs = context.Pipe()
            process = context.Process(target=load, args=(way, part, folder, rank, theirs))
            process.start()
            theirs.close()
            stack.callback(process.kill)
            ranks.append(process)
            pipes.append(pipe)
        for pipe in pipes:
            pipe.recv()
        start = [anonymous_bytes(process) for process in ranks]
        for pipe in pipes:
            pipe.send("load")
        peak, began = list(start), time.perf_counter()
        # From outside: a thread of theirs would wait for the interpreter.
        while any(loading := [not pipe.poll() for pipe in pipes]):
            for rank in compress(range(len(ranks)), loading):
                peak[rank] = max(peak[rank], anonymous_bytes(ranks[rank]))
            if time.perf_counter() - began > LIMIT_S:
                raise TimeoutError(f"{part}, {way}: not loaded within {LIMIT_S} s")
            time.sleep(1e-3)
        seconds = time.perf_counter() - began
        held = [pipe.recv() for pipe in pipes]
        peak = [max(most, anonymous_bytes(rank)) for most, rank in zip(peak, ranks, strict=True)]
        for process, pipe in zip(ranks, pipes, strict=True):
            pipe.send("end")
            process.join(LIMIT_S)
    grown = [most - first for most, first in zip(peak, start, strict=True)]
    return {
        "ratio": round(max(more / kept for more, kept in zip(grown, held, strict=True)), 3),
        "held_mib": [round(kept / 2**20, 1) for kept in held],
        "grown_mib": [round(more / 2**20, 1) for more in grown],
        "seconds": round(seconds, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "tiny", SMALLEST)
        parameters = write_model(folder / "model", SIZES["0.3B"], vocabulary=VOCABULARY)
        cells = [(way, part) for way in WAYS for part in PARTS]
        found = {
            f"{part}_{way}": growth(way, part, folder)
            for way, part in tqdm(cells, disable=given.json)
        }
    reached = all(of["ratio"] <= BAR for cell, of in found.items() if not cell.endswith("plain"))
    result = {
        "bench": "load",
        "parameters": parameters,
        **{f"{cell}_ratio": of["ratio"] for cell, of in found.items()},
        "bar": BAR,
        "reached": reached,
        "cells": found,
        **conditions(),
    }
    print(json.dumps(result))
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
