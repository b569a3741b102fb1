"""A rank of a training loop that is connected, alone or with DDP or FSDP2.

Started by `connect_parity.py`, with its rank and a `Loop` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import reference_loop
import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForImageTextToText

import flowtrain
from flowtrain.models.registry import family_for
from flowtrain.train.connect.part import LoopPart
from flowtrain.train.ranks.backbone import BackbonePart

CLIP = 0.2
RATE = {"sgd": 0.3, "adamw": 1e-3}
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9},
    "adamw": {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """A connected loop."""

    model: str
    """Folder of the model."""
    data: str
    """File of samples."""
    out: str
    """Folder for the job, the final model, and what each rank found."""
    steps: int
    samples: int = 6
    """Samples of a step."""
    max_tokens: int = 160
    """Maximum tokens of a microbatch."""
    mode: Literal["strict", "frozen"] = "strict"
    dtype: Literal["float32", "float64"] = "float32"
    optimizer: Literal["sgd", "adamw"] = "sgd"
    wrap: Literal["none", "ddp", "fsdp"] = "none"
    lora: bool = False
    """Whether the language model has adapters of PEFT, which alone train."""
    ranks: int = 1
    encoder_ranks: int | None = 1
    """None with colocated ranks."""
    layout: Literal["decoupled", "colocated"] = "decoupled"
    processed: bool = False
    """Whether the samples are outputs of the model's processor, from `processed_samples.py`."""
    held_out: str | None = None
    """File of samples on which the model is evaluated; None without evaluations."""
    evaluate_every: int = 0
    leave_after: int | None = None
    """Steps after which the loop leaves its block; None for all."""
    keeps_factor: bool = False
    """Whether gradients of features return with the factor of DDP's average: a planted error."""


def load(loop: Loop, *, divided: bool = False) -> tuple[Any, torch.optim.Optimizer]:
    """The whole model, divided by FSDP2 or not, and an optimizer of all parameters that train."""
    dtype = reference_loop.DTYPES[loop.dtype]
    # Experts one by one: torch's grouped product, the default, has no float64.
    experts = "eager" if loop.dtype == "float64" else None
    model: Any = AutoModelForImageTextToText.from_pretrained(
        loop.model, dtype=dtype, experts_implementation=experts
    )
    if loop.dtype == "float64":
        model.loss_function = _exact_loss
    if loop.mode == "frozen":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(reference_loop.part_of(name) == "backbone")
    if loop.lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(2)
        adapters = LoraConfig(r=4, target_modules=r".*language_model.*_proj")
        with warnings.catch_warnings():
            # PEFT reads an attribute that transformers has renamed.
            warnings.simplefilter("ignore", FutureWarning)
            model = get_peft_model(model, adapters).to(dtype)
    if divided:
        divide(model, family_for(Path(loop.model)))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[loop.optimizer]
    return model.train(), kind(trained, lr=RATE[loop.optimizer], **OPTIONS[loop.optimizer])


def divide(model: Any, family: Any) -> None:
    """Divide a model by FSDP2, with the parts in front of the cut on their own."""
    front = [getattr(model.model, name) for name in family.image_modules]
    alone = {part for part in front if isinstance(part, torch.nn.Parameter)}
    for part in (*model.model.language_model.layers, *front):
        if part not in alone:
            fully_shard(part)
    fully_shard(model, ignored_params=alone)


def rate_at(loop: Loop, step: int) -> float:
    """Learning rate of a step."""
    return RATE[loop.optimizer] / (1 + step / 4)


def _exact_loss(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    """The loss of transformers, which computes it in float32, in the dtype of the logits."""
    return F.cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=-100)


def main(rank: int, loop: Loop) -> None:
    out = Path(loop.out)
    if loop.ranks > 1:
        store = f"file://{out / 'group'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=loop.ranks)
    if loop.keeps_factor:
        LoopPart._gradient = BackbonePart._gradient  # type: ignore[method-assign]
    model, optimizer = load(loop, divided=loop.wrap == "fsdp")
    losses: dict[int, float] = {}
    norms: dict[int, float] = {}
    evaluations: dict[int, float] = {}
    microbatches = 0
    state = torch.random.get_rng_state()
    data: Any = loop.data
    if loop.processed:
        data = {"dataset": "processed_samples:make", "shuffle": False}
    with flowtrain.connect(
        out / "job",
        model,
        optimizer,
        mode=loop.mode,
        encoder_ranks=loop.encoder_ranks,
        layout=loop.layout,
        clip_norm=CLIP,
        save_every=2,
        resume=True,
    ) as flow:
        wrapped: Any = DistributedDataParallel(model) if loop.wrap == "ddp" else model
        for step in flow.steps(
            data,
            samples=loop.samples,
            max_tokens=loop.max_tokens,
            steps=loop.steps,
            held_out=loop.held_out,
            evaluate_every=loop.evaluate_every,
        ):
            losses[step.number] = 0.0
            for batch in step:
                syncs = loop.wrap != "ddp" or batch.ends_step
                with nullcontext() if syncs else wrapped.no_sync():
                    loss = wrapped(**batch).loss * batch.weight
                    loss.backward()
                losses[step.number] += float(loss.detach())
                microbatches += 1
            for group in optimizer.param_groups:
                group["lr"] = rate_at(loop, step.number)
            norms[step.number] = flow.step()
            if flow.evaluation is not None:
                evaluations[step.number] = flow.evaluation.loss
            print(step.number, flush=True)
            if step.number + 1 == loop.leave_after:
                break
        else:
            if loop.lora:
                torch.save(model.state_dict(), out / "adapters.pt")
            else:
                flow.save_pretrained(out / "out")
    found = {
        "losses": losses,
        "norms": norms,
        "evaluations": evaluations,
        "microbatches": microbatches,
        "draws": not torch.equal(state, torch.random.get_rng_state()),
    }
    torch.save(found, out / f"{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    loop = Loop(**json.loads(sys.argv[2]))
    main(int(sys.argv[1]), loop)
    sys.stdout.flush()
    if loop.ranks > 1:
        # gloo's threads must not meet the end of the interpreter.
        os._exit(0)
