"""A plain Hugging Face training loop, as the reference for comparisons.

It imports nothing of FlowTrain. It reads the samples and the learning rate of each step from a
`metrics.jsonl`, runs each sample alone through the unmodified model, accumulates gradients of
(sum of losses) / (target tokens of the step), clips, and steps one optimizer.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image, ImageOps
from plain_processor import processor_of, sample_of
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.modeling_layers import GradientCheckpointingLayer

PARTS = ("encoder", "projector", "backbone")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


class Samples:
    """Samples of a JSONL file, each through the model's own processor."""

    def __init__(self, data: Path, model: Path) -> None:
        self._root = data.parent
        self._lines = data.read_text().splitlines()
        self._processor = processor_of(model)

    def __getitem__(self, line: int) -> dict[str, torch.Tensor]:
        record = json.loads(self._lines[line])
        files = {
            "<image>": iter([_upright(self._root / path) for path in record.get("images", [])]),
            "<video>": iter([str(self._root / path) for path in record.get("videos", [])]),
        }
        return sample_of(self._processor, [_message(m, files) for m in record["messages"]])


def _message(message: dict[str, str], files: dict[str, Iterator[Any]]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for piece in re.split("(<image>|<video>)", message["content"]):
        if piece in files:
            kind = piece.strip("<>")
            parts.append({"type": kind, kind: next(files[piece])})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return {"role": message["role"], "content": parts}


def _upright(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def loss_sum(model: torch.nn.Module, sample: dict[str, torch.Tensor], dtype: Any) -> torch.Tensor:
    """Sum of the cross entropies of one sample's target tokens."""
    device = next(model.parameters()).device
    inputs = {k: v.to(device) for k, v in sample.items() if k != "labels"}
    for name in inputs.keys() & {"pixel_values", "pixel_values_videos"}:
        inputs[name] = inputs[name].to(dtype)
    logits = model(**inputs, use_cache=False).logits[0]
    exact = logits.double() if dtype == torch.float64 else logits.float()
    targets = sample["labels"][0, 1:].to(device)
    return F.cross_entropy(exact[:-1], targets, ignore_index=-100, reduction="sum")


def part_of(name: str) -> str:
    """The part of the model that a parameter belongs to."""
    if any(module in name for module in ("merger", "multi_modal_projector", "image_newline")):
        return "projector"
    return "encoder" if name.startswith(("model.visual.", "model.vision_tower.")) else "backbone"


def adapt(net: Any, ranks: Mapping[str, int], seed: int) -> set[str]:
    """Add LoRA adapters of PEFT to all linear layers of some parts, but for the head.

    A is drawn from the seed and the name of its layer, in float32; B is zero.

    Args:
        net: The model.
        ranks: Rank of the adapters by part.
        seed: The seed.

    Returns:
        Names of the parameters of the adapters.
    """
    from peft import LoraConfig, inject_adapter_in_model

    head = net.get_output_embeddings()
    layers = {
        name: ranks[part_of(name)]
        for name, module in net.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head and part_of(name) in ranks
    }
    inject_adapter_in_model(LoraConfig(target_modules=list(layers), rank_pattern=layers), net)
    for name in layers:
        weight = net.get_submodule(name).lora_A["default"].weight
        drawn = torch.empty(weight.shape)
        generator = torch.Generator().manual_seed(seed ^ crc32(name.encode()))
        torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
        weight.data.copy_(drawn)
    return {name for name, _ in net.named_parameters() if ".lora_" in name}


def shard(net: Any, dtype: torch.dtype) -> None:
    """Let FSDP2 compute in a dtype, with float32 weights, gradients and moments.

    The process is a world of its own, so that nothing is divided or summed.
    """
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for module in net.modules():
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, mp_policy=policy)
    fully_shard(net, mp_policy=policy)


def _group(
    name: str,
    parameter: torch.nn.Parameter,
    options: dict[str, Any],
    groups: Sequence[dict[str, Any]],
) -> dict[str, Any] | None:
    """Parameter group of the optimizer for one parameter; vectors have no weight decay."""
    own = next((group for group in groups if fnmatchcase(name, group["match"])), {})
    if not own.get("train", True):
        parameter.requires_grad_(False)
    if not parameter.requires_grad:
        return None
    decay = options.get("weight_decay", 0.0) if parameter.ndim >= 2 else 0.0
    return {
        "params": [parameter],
        "scale": own.get("scale", 1.0),
        "weight_decay": own.get("weight_decay", decay),
    }


def run(
    *,
    model: Path,
    from_seed: int | None,
    data: Path,
    steps: Path,
    dtype: str,
    optimizer: str,
    options: dict[str, Any],
    clip_norm: float | None,
    freeze: Collection[str],
    device: str = "cpu",
    groups: Sequence[dict[str, Any]] = (),
    lora: Mapping[str, int] | None = None,
    lora_seed: int = 0,
    sharded: bool = False,
) -> tuple[list[dict[str, float]], torch.nn.Module]:
    """Train on the steps logged by another run.

    Args:
        model: Hugging Face folder.
        from_seed: Seed to draw weights from, or None to load the folder's.
        data: JSONL in the conversation format.
        steps: `metrics.jsonl` with `samples` and `lr` per step.
        dtype: Dtype of weights and activations.
        optimizer: `sgd` or `adamw`.
        options: Arguments of the optimizer besides `lr`.
        clip_norm: Limit of the gradient norm, or None.
        freeze: Parts to freeze: `encoder`, `projector`, `backbone`.
        device: Device to train on.
        groups: Parameters with options of their own: `match` is a glob pattern of names, `scale` a
            factor of the learning rate, `weight_decay` a weight decay, `train` false freezes.
        lora: Rank of LoRA adapters by part, which train in place of its weights.
        lora_seed: Seed of the adapters.
        sharded: Whether FSDP2 computes in `dtype`, and weights, which start rounded to it, are
            float32.

    Returns:
        Step, loss, target tokens and gradient norm of each step, and the trained model.
    """
    torch_dtype = DTYPES[dtype]
    # Experts one by one: torch's grouped product, the default, has no float64.
    experts = "eager" if torch_dtype == torch.float64 else None
    if from_seed is None:
        net = AutoModelForImageTextToText.from_pretrained(
            model, dtype=torch_dtype, experts_implementation=experts
        )
    else:
        torch.manual_seed(from_seed)
        config = AutoConfig.from_pretrained(model)
        net = AutoModelForImageTextToText.from_config(
            config, dtype=torch.float32, experts_implementation=experts
        )
        # Weights alone, so that rotary frequencies stay float32, as in a loaded model.
        for parameter in net.parameters():
            parameter.data = parameter.data.to(torch_dtype)
    if sharded:
        net = net.float()
    if device != "cpu":
        # Exact float32: torch would allow TF32 in convolutions.
        torch.backends.cudnn.allow_tf32 = False
        net = net.to(device)
    adapters = adapt(net, lora, lora_seed) if lora else set()
    net.train()
    frozen = {*freeze, *(lora or ())}
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in adapters or part_of(name) not in frozen)
    if sharded:
        shard(net, torch_dtype)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    parameters = [
        group
        for name, parameter in net.named_parameters()
        if (group := _group(name, parameter, options, groups)) is not None
    ]
    trained = [group["params"][0] for group in parameters]
    opt = kind(parameters, lr=0.0, **options)
    samples = Samples(data, model)
    log = []
    for line in steps.read_text().splitlines():
        step = json.loads(line)
        chosen = [samples[index] for index in step["samples"]]
        count = sum(int((s["labels"][:, 1:] != -100).sum()) for s in chosen)
        total = 0.0
        for sample in chosen:
            loss = loss_sum(net, sample, torch_dtype)
            if loss.requires_grad:  # Nothing behind a text alone may train.
                (loss / count).backward()
            total += float(loss.detach())
        grads = [p for p in trained if p.grad is not None]
        limit = float("inf") if clip_norm is None else clip_norm
        norm = torch.nn.utils.clip_grad_norm_(grads, limit)
        for group in opt.param_groups:
            group["lr"] = step["lr"] * group["scale"]
        opt.step()
        opt.zero_grad(set_to_none=True)
        log.append(
            {
                "step": step["step"],
                "loss": total / count,
                "target_tokens": count,
                "grad_norm": float(norm),
            }
        )
    if sharded:
        weights = {name: value.full_tensor() for name, value in net.state_dict().items()}
        net = AutoModelForImageTextToText.from_config(net.config, dtype=torch.float32)
        net.load_state_dict(weights)
        dist.destroy_process_group()
    return log, net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--seed", type=int, help="draw weights from it instead of loading them")
    parser.add_argument("--data", type=Path, required=True, help="JSONL file")
    parser.add_argument("--steps", type=Path, required=True, help="metrics.jsonl of another run")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="adamw")
    parser.add_argument("--options", type=json.loads, default={}, help="JSON, besides lr")
    parser.add_argument("--clip-norm", type=float)
    parser.add_argument(
        "--freeze", nargs="*", default=[], choices=("encoder", "projector", "backbone")
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True, help="folder for log and model")
    given = parser.parse_args()
    log, net = run(
        model=given.model,
        from_seed=given.seed,
        data=given.data,
        steps=given.steps,
        dtype=given.dtype,
        optimizer=given.optimizer,
        options=given.options,
        clip_norm=given.clip_norm,
        freeze=given.freeze,
        device=given.device,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    given.out.joinpath("losses.jsonl").write_text("".join(json.dumps(x) + "\n" for x in log))
    net.save_pretrained(given.out / "model")


if __name__ == "__main__":
    main()
