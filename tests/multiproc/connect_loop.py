"""A training loop that is connected: one process, or ranks with DDP or FSDP2.

Started by `test_connect.py`:
RANK RANKS MODEL DATA OUT MODE STEPS none|ddp|fsdp|lora [ENCODERS [LAYOUT]].
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForImageTextToText

import flowtrain

# With these sizes, colocated ranks encode images for each other, and dummies.
BATCH, STEPS, RATE, CLIP, MAX_TOKENS = 5, 4, 0.5, 0.2, 100


def load(folder: Path, mode: str, wrap: str = "none") -> tuple[Any, torch.optim.Optimizer]:
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    model.model.visual.requires_grad_(mode == "strict")
    if wrap == "lora":
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(2)
        adapters = LoraConfig(r=4, target_modules=r".*language_model.*_proj")
        with warnings.catch_warnings():
            # PEFT reads an attribute that transformers has renamed.
            warnings.simplefilter("ignore", FutureWarning)
            model = get_peft_model(model, adapters)
    if wrap == "fsdp":
        for part in (*model.model.language_model.layers, model.model.visual, model):
            fully_shard(part)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model.train(), torch.optim.SGD(trained, lr=RATE, momentum=0.5)


def rate_at(step: int) -> float:
    return RATE / (1 + step)


def main(
    rank: int,
    ranks: int,
    folder: Path,
    data: Path,
    out: Path,
    mode: Any,
    steps: int,
    wrap: str,
    encoder_ranks: int = 1,
    layout: Any = "decoupled",
) -> None:
    if ranks > 1:
        store = f"file://{out / 'group'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    model, optimizer = load(folder, mode, wrap)
    losses: list[float] = []
    norms: list[float] = []
    microbatches = 0
    state = torch.random.get_rng_state()
    with flowtrain.connect(
        out / "job",
        model,
        optimizer,
        mode=mode,
        encoder_ranks=encoder_ranks if layout == "decoupled" else None,
        layout=layout,
        clip_norm=CLIP,
        save_every=2,
        resume=True,
    ) as flow:
        wrapped: Any = DistributedDataParallel(model) if wrap == "ddp" else model
        for step in flow.steps(
            data / "train.jsonl", samples=BATCH, max_tokens=MAX_TOKENS, steps=steps
        ):
            losses.append(0.0)
            for batch in step:
                syncs = wrap != "ddp" or batch.ends_step
                with nullcontext() if syncs else wrapped.no_sync():
                    loss = wrapped(**batch).loss * batch.weight
                    loss.backward()
                losses[-1] += float(loss.detach())
                microbatches += 1
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step.number)
            norms.append(flow.step())
            print(step.number, flush=True)
        if wrap == "lora":
            torch.save(model.state_dict(), out / "adapters.pt")
        else:
            flow.save_pretrained(out / "out")
    found = {
        "losses": losses,
        "norms": norms,
        "microbatches": microbatches,
        "draws": not torch.equal(state, torch.random.get_rng_state()),
    }
    torch.save(found, out / f"{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks, folder, data, out, mode, steps, wrap, *rest = sys.argv[1:]
    places = Path(folder), Path(data), Path(out)
    main(int(rank), int(ranks), *places, mode, int(steps), wrap, *map(int, rest[:1]), *rest[1:])
    sys.stdout.flush()
    if int(ranks) > 1:
        # gloo's threads must not meet the end of the interpreter.
        os._exit(0)
