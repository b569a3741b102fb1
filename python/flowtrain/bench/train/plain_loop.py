"""A plain training loop with torch and Hugging Face, as the baseline of `flowtrain bench train`.

    torchrun --standalone --nproc-per-node 2 -m flowtrain.bench.train.plain_loop --help

DistributedDataParallel around the unmodified model, a DataLoader whose worker processes read,
decode and tokenize, fused AdamW, and a loss that is the mean over all target tokens of the step.
Step s has the samples [s x G, (s + 1) x G) of the file, an equal number of consecutive ones for
each rank. Variants:

- padded: microbatches of `--batch-size` samples, padded to their longest.
- grouped: the same, with the order of the Hugging Face Trainer's `group_by_length`.
- packed: samples side by side in rows of at most `--microbatch-tokens` tokens, in their order.

With `plain_data.py` it is complete: it imports nothing of FlowTrain, except for the attention of
`packed`, which computes the documents of a row one by one. In transformers only the flash kernels
do that, and they need a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForImageTextToText

from flowtrain.bench.train.plain_data import (
    InMemory,
    Microbatch,
    Sample,
    Samples,
    pack,
    pad,
    shares,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Passed to the model in a padded microbatch; the other tensors stay with the loop.
_INPUTS = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "mm_token_type_ids",
    "pixel_values",
    "image_grid_thw",
)


def loader(given: argparse.Namespace, samples: Samples) -> DataLoader[Any]:
    """Loader whose items are the microbatches of one step of this rank."""
    lines = shares(given, samples, dist.get_rank(), dist.get_world_size())
    collate: Callable[[Sequence[Sample]], list[Microbatch]] = (
        partial(pack, tokens=given.microbatch_tokens)
        if given.variant == "packed"
        else partial(pad, size=given.batch_size)
    )
    in_memory = InMemory(samples, chain.from_iterable(lines)) if given.in_memory else None
    return DataLoader(
        in_memory or samples,
        batch_sampler=lines,
        collate_fn=collate,
        num_workers=0 if in_memory else given.workers,
        pin_memory=given.device == "cuda",
    )


def build(given: argparse.Namespace, device: torch.device) -> Any:
    """The unmodified model, with weights drawn from the seed or loaded."""
    dtype = DTYPES[given.dtype]
    implementation: Any = "sdpa"
    if given.variant == "packed":
        from flowtrain.models.attention import register

        implementation = {"text_config": register(), "vision_config": "sdpa"}
    if given.seed_weights:
        torch.manual_seed(given.seed)
        model: Any = AutoModelForImageTextToText.from_config(
            AutoConfig.from_pretrained(given.model),
            dtype=torch.float32,
            attn_implementation=implementation,
        )
        # Weights alone, so that rotary frequencies stay float32, as in a loaded model.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    else:
        model = AutoModelForImageTextToText.from_pretrained(
            given.model, dtype=dtype, attn_implementation=implementation
        )
    if given.freeze_encoder:
        model.model.visual.requires_grad_(False)
    return model.to(device).train()


def train(given: argparse.Namespace) -> dict[str, Any]:
    """Train; returns the time at which the first step began, and figures of each step.

    With `--busy` no communication overlaps with the backward pass: each rank notes its time up to
    the reduction of the gradients, then waits for the others.
    """
    cuda = given.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(given.threads)
    model = build(given, device)
    samples = Samples(given.data, given.model)
    batches = loader(given, samples)
    lines = range(given.steps * given.global_batch)
    parallel = DistributedDataParallel(
        model,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
        # A microbatch without an image does not use the encoder.
        find_unused_parameters=not given.freeze_encoder
        and not all(samples.has_image(line) for line in lines),
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=given.lr, betas=given.betas, weight_decay=given.weight_decay, fused=True
    )
    dist.barrier()
    start_time, before = time.time(), time.perf_counter()
    seconds: list[float] = []
    busy: list[float] = []
    losses: list[torch.Tensor] = []
    sizes: list[int] = []
    for step, microbatches in enumerate(batches):
        targets = sum(int((b["labels"] != -100).sum()) for b in microbatches)
        tokens = sum(_num_tokens(batch) for batch in microbatches)
        sizes.append(tokens)
        total = torch.tensor(targets, device=device)
        dist.all_reduce(total)
        loss_sum = torch.zeros((), device=device)
        for number, batch in enumerate(microbatches, start=1):
            local = given.busy or number < len(microbatches)
            with parallel.no_sync() if local else nullcontext():
                loss = loss_of(parallel, batch, device)
                # DDP takes the mean of the ranks' gradients.
                (loss * dist.get_world_size() / total).backward()
            loss_sum += loss.detach()
        if given.busy:
            busy.append(_until_now(before, cuda))
            dist.barrier()
            for parameter in trained:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        if given.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained, given.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss_sum / total)
        # Otherwise the host may run ahead of the device.
        sync = cuda and step + 1 in (given.warmup, given.steps)
        seconds.append(_until_now(before, sync))
        before += seconds[-1]
    return {
        "start_time": start_time,
        "seconds": seconds,
        "losses": _sum(torch.stack(losses).double()).tolist(),
        "tokens": _sum(torch.tensor(sizes, device=device)).tolist(),
        "busy": _gathered(busy, device),
    }


def _positions(model: Any, batch: Microbatch) -> torch.Tensor:
    """Positions of the documents of a row, shape [4, 1, tokens]; each starts at 0."""
    lengths = batch["edges"].diff().tolist()
    grids = batch.get("image_grid_thw", torch.zeros((0, 3), dtype=torch.long))
    rows = []
    for ids, types, grid in zip(
        batch["input_ids"].split(lengths, dim=1),
        batch["mm_token_type_ids"].split(lengths, dim=1),
        grids.split(batch["images"].tolist()),
        strict=True,
    ):
        axes, _ = model.get_rope_index(ids, types, image_grid_thw=grid)
        rows.append(torch.cat([torch.arange(ids.shape[1])[None, None], axes]))
    return torch.cat(rows, dim=2)


def loss_of(model: Any, batch: Microbatch, device: torch.device) -> torch.Tensor:
    """Sum of the cross entropies of a microbatch's target tokens."""
    inputs = {key: batch[key] for key in _INPUTS if key in batch}
    packed = {}
    if "edges" in batch:
        from flowtrain.models.documents import Documents

        inputs["position_ids"] = _positions(model.module.model, batch)
        packed["documents"] = Documents(batch["edges"].diff().tolist())
    moved = {key: value.to(device, non_blocking=True) for key, value in inputs.items()}
    if "pixel_values" in moved:
        moved["pixel_values"] = moved["pixel_values"].to(model.module.dtype)
    logits = model(**moved, **packed, use_cache=False).logits
    labels = batch["labels"].to(device, non_blocking=True)
    return F.cross_entropy(
        logits[:, :-1].float().flatten(0, 1),
        labels[:, 1:].flatten(),
        ignore_index=-100,
        reduction="sum",
    )


def _num_tokens(batch: Microbatch) -> int:
    """Tokens without padding."""
    return (
        int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["labels"].numel()
    )


def _until_now(before: float, sync: bool) -> float:
    if sync:
        torch.cuda.synchronize()
    return time.perf_counter() - before


def _sum(values: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(values)
    return values


def _gathered(busy: list[float], device: torch.device) -> list[list[float]]:
    """Busy seconds of every rank, by step."""
    mine = torch.tensor(busy, dtype=torch.float64, device=device)
    ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, mine)
    found: list[list[float]] = torch.stack(ranks).T.tolist()
    return found


def main() -> None:
    """Train as one rank of torchrun; rank 0 writes the figures of `train` as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument(
        "--seed-weights", action="store_true", help="draw weights from --seed, do not load them"
    )
    parser.add_argument("--data", type=Path, required=True, help="JSONL file")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--variant", choices=("padded", "grouped", "packed"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=0, help="steps that the caller leaves out")
    parser.add_argument("--global-batch", type=int, required=True, help="samples per step")
    parser.add_argument("--batch-size", type=int, default=8, help="samples per microbatch")
    parser.add_argument("--microbatch-tokens", type=int, default=2048, help="of packed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="DataLoader workers per rank")
    parser.add_argument("--in-memory", action="store_true", help="process samples beforehand")
    parser.add_argument("--busy", action="store_true", help="measure each rank's busy time")
    parser.add_argument("--freeze-encoder", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--threads", type=int, default=1, help="torch threads per rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--betas", type=float, nargs=2, default=(0.9, 0.999))
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--clip-norm", type=float)
    given = parser.parse_args()
    dist.init_process_group("nccl" if given.device == "cuda" else "gloo")
    found = train(given)
    if dist.get_rank() == 0:
        given.out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
