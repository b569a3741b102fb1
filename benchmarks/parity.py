"""How much does training through the pool differ from a plain single-process loop?

Trains a tiny model with FlowTrain (samples with none and several images, and with videos if asked,
clipping active), runs
`reference_loop.py` over the same samples, one at a time, and compares losses and weights. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import reference_loop
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText

from flowtrain.config import RunConfig, from_dict
from flowtrain.config.parallel import Sharding
from flowtrain.config.train import LOGIT_BYTES
from flowtrain.data.digits import write_digits
from flowtrain.models.tiny import SMALLEST
from flowtrain.train.launch.local import run_local_ranks
from flowtrain.train.launch.run import train
from flowtrain.train.state.logs import read_log

OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "weight_decay": 0.01},
    "adamw": {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01},
}
LR = {"sgd": 0.1, "adamw": 1e-3}
MODELS = {
    "qwen3-vl": "qwen3_vl",
    "qwen3-vl-moe": "qwen3_vl_moe",
    "qwen2.5-vl": "qwen2_5_vl",
    "internvl": "internvl",
    "llava": "llava",
    "llava-onevision": "llava_onevision",
}
# Fewer decoder layers than deepstack taps, so that the last tap is unused.
TIED = dataclasses.replace(SMALLEST, tied=True, text_depth=1)
GROUPS: dict[str, dict[str, Any]] = {
    "slower": {"match": "model.visual.*", "lr": 2e-4},
    "decayed": {"match": "*norm.weight", "weight_decay": 0.1},
    "frozen": {"match": "model.language_model.layers.0.*", "train": False},
}
PARTS = ("encoder", "backbone")
SEED = 7
# Decoupled ranks get several slots a step, and so do colocated ones that take them by chunks. Five
# samples cannot be balanced over colocated ranks, so that images move between these.
BATCH = {"decoupled": 12, "colocated": 5, "chunks": 9}
MICROBATCH_TOKENS = {"decoupled": 160, "colocated": 130, "chunks": 130}
# The other families make more tokens of an image.
MORE_TOKENS = {model: 1 if model.startswith("qwen") else 2 for model in MODELS}
VIDEO_TOKENS = {
    "qwen3-vl": 3,
    "qwen3-vl-moe": 3,
    "qwen2.5-vl": 2,
    "internvl": 4,
    "llava-onevision": 3,
}
CLIP = 0.5


def run_config(folder: Path, given: argparse.Namespace) -> RunConfig:
    return from_dict(
        {
            "run": folder / "run",
            "model": {
                "config": folder / "data" / "model",
                "dtype": given.dtype,
                "compute_dtype": given.dtype,  # The plain loop has no master weights.
                "freeze": list(given.freeze),
                "device": given.device,
                "compile": given.compile,
            },
            # A thread starts sooner than a process.
            "data": {"path": folder / "data" / "train.jsonl", "workers": 0},
            "train": {
                "steps": given.steps,
                "global_batch": BATCH[load_of(given)],
                "microbatch_tokens": MICROBATCH_TOKENS[load_of(given)]
                * (VIDEO_TOKENS if given.videos else MORE_TOKENS)[given.model],
                "logit_bytes": given.logit_bytes,
                "seed": SEED,
                "threads": 1,
            },
            "lora": {part: {"rank": rank} for part, rank in given.lora},
            "optim": {
                "name": given.optimizer,
                "lr": LR[given.optimizer],
                "clip_norm": CLIP,
                "schedule": "cosine",
                "warmup_steps": min(3, given.steps - 1),
                "groups": list(GROUPS.values()) if given.groups else [],
                "offload": given.offload,
                **OPTIONS[given.optimizer],
            },
            "flow": {
                "mode": given.mode,
                **layout_fields(given),
                "item_tokens": 24,
            },
            "parallel": {module: parallel_fields(given, module) for module in PARTS},
            "pool": {"slab_bytes": 4096},
            "debug": {"fault": given.fault},
        },
        source="parity",
    )


def load_of(given: argparse.Namespace) -> str:
    """Which of the sizes of steps a run has."""
    if given.ranks is None:
        return "decoupled"
    return "colocated" if given.chunk_slots is None else "chunks"


def layout_fields(given: argparse.Namespace) -> dict[str, Any]:
    if given.ranks is not None:
        chunks = {} if given.chunk_slots is None else {"chunk_slots": given.chunk_slots}
        return {"layout": "colocated", "ranks": given.ranks, **chunks}
    return {"encoder_ranks": given.encoder_ranks, "backbone_ranks": given.backbone_ranks}


def adapter(text: str) -> tuple[str, int]:
    """Part and rank of an argument of `--lora`."""
    part, _, rank = text.partition("=")
    return part, int(rank)


def parallel_fields(given: argparse.Namespace, module: str) -> dict[str, Any]:
    level, _, layers = getattr(given, f"recompute_{module}").partition(":")
    return {
        "sharding": getattr(given, module),
        "recompute": level,
        "recompute_layers": int(layers) if layers else None,
    }


def add_videos(data: Path) -> None:
    """Put one or two short videos of several sizes into most samples."""
    from clips import write_clip  # Needs av, which the other options do not.

    draw = np.random.default_rng(SEED)
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    for number, line in enumerate(lines):
        clips = [
            write_clip(
                data.parent / f"{number}.{clip}.mp4",
                frames=int(draw.integers(4, 9)),
                height=8 * int(draw.integers(1, 3)),
                width=16,
                fps=5,
                seed=2 * number + clip,
            )
            for clip in range(int(draw.integers(0, 3)))
        ]
        question = line["messages"][0]
        question["content"] += "".join(f"<video>{n}" for n in range(len(clips)))
        line["videos"] = [clip.name for clip in clips]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))


def compare(
    folder: Path,
    given: argparse.Namespace,
    *,
    run_ranks: Callable[..., None] = run_local_ranks,
) -> dict[str, Any]:
    write_digits(
        folder / "data",
        train=BATCH[load_of(given)] * given.steps,
        heldout=1,
        seed=SEED,
        text_only=0.2,
        multi_image=0.2,
        sizes=TIED if given.tied else SMALLEST,
        family=MODELS[given.model],
    )
    config = run_config(folder, given)
    if given.videos:
        add_videos(config.data.path)
    summary = train(config, run_ranks=run_ranks)
    log, net = reference_loop.run(
        model=config.model.folder,
        from_seed=SEED,
        data=config.data.path,
        steps=config.run / "metrics.jsonl",
        dtype=given.dtype,
        optimizer=given.optimizer,
        options=OPTIONS[given.optimizer],
        clip_norm=CLIP,
        freeze={*given.freeze, *(["encoder"] if given.mode == "frozen" else [])},
        device=given.device,
        groups=[
            {"scale": group.get("lr", LR[given.optimizer]) / LR[given.optimizer], **group}
            for group in (GROUPS.values() if given.groups else ())
        ],
        lora=dict(given.lora),
        lora_seed=SEED,
    )
    ours = read_log(config.run / "metrics.jsonl")
    for mine, theirs in zip(ours, log, strict=True):
        assert mine["target_tokens"] == theirs["target_tokens"], (mine, theirs)
    losses = [
        abs(mine["loss"] - theirs["loss"]) / abs(theirs["loss"])
        for mine, theirs in zip(ours, log, strict=True)
    ]
    weights, change, worst = compare_weights(config, net)
    return {
        "max_rel_loss_diff": max(losses),
        "max_rel_weight_diff": weights,
        "worst_weight": worst,
        "weight_change": change,
        "clipped_steps": sum(theirs["grad_norm"] > CLIP for theirs in log),
        "steps": given.steps,
        "bytes_through_pool": summary["bytes_through_pool"],
        **layout_fields(given),
        "encoder": given.encoder,
        "backbone": given.backbone,
        "compile": given.compile,
        "offload": given.offload,
        "mode": given.mode,
        "dtype": given.dtype,
        "device": given.device,
        "model": given.model,
        "tied": given.tied,
        "freeze": list(given.freeze),
        "groups": given.groups,
        "lora": dict(given.lora),
        "videos": given.videos,
        "logit_bytes": given.logit_bytes,
        **{f"recompute_{module}": getattr(given, f"recompute_{module}") for module in PARTS},
        "optimizer": given.optimizer,
        "fault": given.fault,
    }


def start_and_final(
    config: RunConfig, net: Any
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights at the start, and what `RUN/final` has: with adapters, only what trains."""
    dtype = reference_loop.DTYPES[config.model.dtype]
    folder, ranks = config.run / "final", config.lora.ranks
    torch.manual_seed(SEED)
    start = AutoModelForImageTextToText.from_config(net.config, dtype=torch.float32)
    if not ranks:
        final = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype)
        return start.state_dict(), final.state_dict()
    base = copy.deepcopy(start).to(dtype)
    with warnings.catch_warnings():
        # PEFT calls what transformers will remove.
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing", FutureWarning)
        loaded = PeftModel.from_pretrained(base, folder, is_trainable=True).named_parameters()
    reference_loop.adapt(start, ranks, SEED)
    return start.state_dict(), {
        name.removeprefix("base_model.model.").replace(".modules_to_save.default", ""): value
        for name, value in loaded
        if value.requires_grad
    }


def compare_weights(config: RunConfig, net: torch.nn.Module) -> tuple[float, float, str]:
    """Largest relative difference of a tensor, change of what trains, and which tensor.

    Without adapters it is the change of the whole model.

    In a tower without rotary positions a bias of the keys shifts all scores of a query alike, so
    that its exact gradient is zero and its value is rounding alone: its difference is relative to
    the key weights.
    """
    start, final = start_and_final(config, net)
    worst, name_of_worst, moved, size = 0.0, "", 0.0, 0.0
    trained = net.state_dict()
    for name, theirs in trained.items():
        theirs = theirs.double().cpu()
        before = start[name].double()
        # Beside adapters, what is not in the final files must be as it was.
        mine = final.get(name, start[name]).detach()
        without_gradient = "vision_tower" in name and name.endswith("k_proj.bias")
        scale = trained[name.replace(".bias", ".weight")].double() if without_gradient else theirs
        difference = float((mine.double() - theirs).norm() / scale.norm().cpu())
        if difference > worst:
            worst, name_of_worst = difference, name
        if name in final:
            moved += float((theirs - before).square().sum())
            size += float(before.square().sum())
    return worst, (moved / size) ** 0.5, name_of_worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layout", choices=("decoupled", "colocated"), default="decoupled")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of --layout colocated")
    parser.add_argument("--chunk-slots", type=int, help="flow.chunk_slots of --layout colocated")
    parser.add_argument("--encoder-ranks", type=int, default=1)
    parser.add_argument("--backbone-ranks", type=int, default=1)
    for module in PARTS:
        parser.add_argument(
            f"--{module}",
            choices=get_args(Sharding),
            default="replicated",
            help=f"parallel.{module}.sharding: what its ranks divide",
        )
        parser.add_argument(
            f"--recompute-{module}",
            default="none",
            metavar="LEVEL[:N]",
            help=f"parallel.{module}.recompute, and recompute_layers: selective, full, full:2",
        )
    parser.add_argument("--compile", action="store_true", help="model.compile")
    parser.add_argument("--offload", action="store_true", help="optim.offload")
    parser.add_argument("--mode", choices=("frozen", "strict"), default="strict")
    parser.add_argument("--dtype", choices=reference_loop.DTYPES, default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", choices=MODELS, default="qwen3-vl")
    parser.add_argument(
        "--freeze", nargs="*", default=[], help="model.freeze: parts that do not train"
    )
    parser.add_argument(
        "--groups", action="store_true", help="three parameter groups, one of them frozen"
    )
    parser.add_argument(
        "--lora",
        nargs="*",
        default=[],
        type=adapter,
        metavar="PART=RANK",
        help="LoRA adapters, which train in place of the weights of a part",
    )
    parser.add_argument("--videos", action="store_true", help="videos in most samples")
    parser.add_argument("--tied", action="store_true", help="one matrix for both embeddings")
    parser.add_argument(
        "--logit-bytes", type=int, default=LOGIT_BYTES, help="train.logit_bytes; 4000 forces chunks"
    )
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="adamw")
    parser.add_argument("--fault", help="value of debug.fault: a function to call in each rank")
    parser.add_argument("--json", action="store_true", help="no table before the JSON line")
    given = parser.parse_args()
    if given.layout == "decoupled":
        given.ranks = None
    with tempfile.TemporaryDirectory() as folder:
        result = compare(Path(folder), given)
    if not given.json:
        for key, value in result.items():
            print(f"{key:>20}  {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
