"""Times of single operators of a large model, forward and backward, in bfloat16.

Norms and rotations as FlowTrain computes them beside the operators of torch one by one; SwiGLU also
compiled; matrix products with their rate; attention of the same images by one varlen kernel, of
flash attention and of cuDNN, and image by image with each backend of torch. Medians by
`torch.utils.benchmark`; prints JSON lines. An operator that cannot run has its error in place of a
time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from gpu_report import conditions
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import varlen as torch_varlen
from torch.utils.benchmark import Timer

from flowtrain.models.attention import varlen_attention
from flowtrain.models.documents import Documents
from flowtrain.models.rms_norm import RmsNorm
from flowtrain.models.rotary import Rotary

EPS = 1e-6
IMAGES = [4900, 11600, 2800, 5200, 7168]
DENSE = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
Case = tuple[str, Callable[..., torch.Tensor], list[tuple[int, ...]], float]


def varlen(images: list[int], *, cudnn: bool = False) -> Callable[..., torch.Tensor]:
    """With `cudnn` by the kernel of cuDNN, which torch has there and does not choose."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        documents, module = Documents(images), torch.nn.Module()
        torch_varlen._should_use_cudnn = lambda _: cudnn  # Also for the backward pass that follows.
        return varlen_attention(module, q, k, v, None, is_causal=False, documents=documents)[0]

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
    images = [length // scale for length in IMAGES]
    of_images: list[tuple[int, ...]] = [(1, 16, sum(images), 64)] * 3
    flops = 12 * sum(length**2 for length in images) * 1024
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
        ("attention of images, varlen", varlen(images), of_images, flops),
        ("attention of images, varlen, cuDNN", varlen(images, cudnn=True), of_images, flops),
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
) -> float:
    """Median time of a forward and a backward pass."""
    inputs = [
        torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_() for shape in shapes
    ]
    gradient = torch.randn_like(function(*inputs))

    def both() -> None:
        torch.autograd.grad(function(*inputs), inputs, gradient)

    return Timer("both()", globals={"both": both}).blocked_autorange(min_run_time=0.2).median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--scale", type=int, default=1, help="divisor of the rows, to try this file"
    )
    parser.add_argument(
        "--flash",
        metavar="NAME",
        help="another flash attention that torch knows, such as FA3 or FA4",
    )
    given = parser.parse_args()
    if given.flash is not None:
        torch.nn.attention.activate_flash_attention_impl(given.flash)
    print(json.dumps({"conditions": conditions()}), flush=True)
    for name, function, shapes, flops in cases(given.scale):
        row: dict[str, Any] = {"operator": name, "shapes": shapes}
        try:
            seconds = seconds_of(function, shapes, given.device)
        except RuntimeError as error:
            row["failed"] = str(error).splitlines()[0]
        else:
            row["ms"] = round(seconds * 1e3, 3)
            if flops:
                row["tflops"] = round(flops / seconds / 1e12)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
