"""Times of single operators of a large model, forward and backward, in bfloat16.

Norms and rotations as FlowTrain computes them beside the operators of torch one by one; SwiGLU also
compiled; matrix products with their rate; attention of the same images by one varlen kernel, of
torch and of flash-attn-4 if it is installed, and image by image with each backend of torch. Medians
by `torch.utils.benchmark`, and the time of the first call, in which kernels are compiled or chosen;
prints JSON lines. An operator that cannot run has its error in place of a time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from gpu_report import conditions
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer

from flowtrain.models import flash4
from flowtrain.models.attention import varlen_attention
from flowtrain.models.documents import Documents
from flowtrain.models.rms_norm import RmsNorm
from flowtrain.models.rotary import Rotary

EPS = 1e-6
IMAGES = [4900, 11600, 2800, 5200, 7168]
DOCUMENTS = [3100, 2300, 1500, 800, 492]
DENSE = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
Case = tuple[str, Callable[..., torch.Tensor], list[tuple[int, ...]], float]


def varlen(
    lengths: list[int], *, by_torch: bool = True, causal: bool = False
) -> Callable[..., torch.Tensor]:
    """By the kernel of torch, or as runs do, which take flash-attn-4 if it is installed."""
    usable = flash4.usable

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        documents, module = Documents(lengths), torch.nn.Module()
        flash4.usable = (lambda _: False) if by_torch else usable
        return varlen_attention(module, q, k, v, None, is_causal=causal, documents=documents)[0]

    return attention


def one_by_one(images: list[int], backend: SDPBackend) -> Callable[..., torch.Tensor]:
    def attention(*inputs: torch.Tensor) -> torch.Tensor:
        split = zip(*(x.split(images, dim=2) for x in inputs), strict=True)
        with sdpa_kernel(backend):
            return torch.cat([F.scaled_dot_product_attention(*image) for image in split], dim=2)

    return attention


def rotation(own: bool) -> Callable[..., torch.Tensor]:
    def turned(x: torch.Tensor) -> torch.Tensor:
        angles = torch.ones(1, 1, *x.shape[-2:], dtype=x.dtype, device=x.device)
        if own:
            return torch.cat(Rotary.apply(x, x, angles, angles), 1)
        a, b = x.chunk(2, -1)
        rotated = x * angles + torch.cat([-b, a], -1) * angles
        return torch.cat([rotated, rotated], 1)

    return turned


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def cases(scale: int) -> list[Case]:
    """Name, function, shapes of its arguments, and FLOPs of both passes."""
    rows, patches = 8192 // scale, 32768 // scale
    images, documents = ([length // scale for length in lengths] for lengths in (IMAGES, DOCUMENTS))
    of_images: list[tuple[int, ...]] = [(1, 16, sum(images), 64)] * 3
    of_documents = [(1, heads, sum(documents), 128) for heads in (16, 8, 8)]
    flops = 12 * sum(length**2 for length in images) * 1024
    causal_flops = 6 * sum(length**2 for length in documents) * 2048
    return [
        (
            "norm, operators one by one",
            lambda x, w: RmsNorm.apply(x, w, EPS),
            [(1, rows, 2048), (2048,)],
            0,
        ),
        (
            "norm, F.rms_norm",
            lambda x, w: F.rms_norm(x, (2048,), w, EPS),
            [(1, rows, 2048), (2048,)],
            0,
        ),
        ("rotation, operators one by one", rotation(False), [(1, 16, rows, 128)], 0),
        ("rotation, one kernel", rotation(True), [(1, 16, rows, 128)], 0),
        ("SwiGLU", swiglu, [(rows, 6144)] * 2, 0),
        ("SwiGLU, compiled", torch.compile(swiglu), [(rows, 6144)] * 2, 0),
        ("layer norm", lambda x: F.layer_norm(x, (1024,)), [(patches, 1024)], 0),
        ("product of a decoder", F.linear, [(rows, 2048), (6144, 2048)], 6 * rows * 2048 * 6144),
        (
            "product of a tower",
            F.linear,
            [(patches, 1024), (4096, 1024)],
            6 * patches * 1024 * 4096,
        ),
        *(
            (f"attention of {name}, {kernel}", varlen(lengths, by_torch=by_torch, **how), *sizes)
            for name, lengths, how, *sizes in (
                ("images", images, {}, of_images, flops),
                ("documents", documents, {"causal": True}, of_documents, causal_flops),
            )
            for kernel, by_torch in (("varlen of torch", True), ("varlen of runs", False))
        ),
        *(
            (
                f"attention of images, one by one, {each.name}",
                one_by_one(images, each),
                of_images,
                flops,
            )
            for each in DENSE
        ),
    ]


def seconds_of(
    function: Callable[..., torch.Tensor], shapes: list[tuple[int, ...]], device: str
) -> tuple[float, float]:
    """Time of a forward and a backward pass: the first, and the median of later ones."""
    inputs = [
        torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_() for shape in shapes
    ]

    def both() -> None:
        out = function(*inputs)
        torch.autograd.grad(out, inputs, torch.ones_like(out))

    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    begun = time.perf_counter()
    both()
    synchronize()
    first = time.perf_counter() - begun
    timer = Timer("both()", globals={"both": both})
    return first, timer.blocked_autorange(min_run_time=0.2).median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--scale", type=int, default=1, help="divisor of the rows, to try this file"
    )
    parser.add_argument("--match", default="", help="part of the names of operators to time")
    given = parser.parse_args()
    print(json.dumps({"conditions": conditions()}), flush=True)
    for name, function, shapes, flops in cases(given.scale):
        if given.match not in name:
            continue
        row: dict[str, Any] = {"operator": name, "shapes": shapes}
        try:
            first, seconds = seconds_of(function, shapes, given.device)
        except (RuntimeError, TypeError) as error:
            row["failed"] = str(error).splitlines()[0]
        else:
            row["first_ms"] = round(first * 1e3, 1)
            row["ms"] = round(seconds * 1e3, 3)
            if flops:
                row["tflops"] = round(flops / seconds / 1e12)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
