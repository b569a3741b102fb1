"""Times of single operators of a large model, forward and backward, in bfloat16.

Norms and rotations as FlowTrain computes them beside the operators of torch one by one; matrix
products and attention with their rate. Medians by `torch.utils.benchmark`; prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
import torch.nn.functional as F
from gpu_report import conditions
from torch.utils.benchmark import Timer

from flowtrain.models.attention import varlen_attention
from flowtrain.models.documents import Documents
from flowtrain.models.rms_norm import RmsNorm
from flowtrain.models.rotary import Rotary

EPS = 1e-6
IMAGES = [4900, 11600, 2800, 5200, 7168]
Case = tuple[str, Callable[..., torch.Tensor], list[tuple[int, ...]], float]


def full_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    documents, module = Documents(IMAGES), torch.nn.Module()
    return varlen_attention(module, q, k, v, None, is_causal=False, documents=documents)[0]


def rotation(own: bool) -> Callable[..., torch.Tensor]:
    def turned(x: torch.Tensor) -> torch.Tensor:
        angles = torch.ones(1, 1, *x.shape[-2:], dtype=x.dtype, device=x.device)
        if own:
            return torch.cat(Rotary.apply(x, x, angles, angles), 1)
        a, b = x.chunk(2, -1)
        rotated = x * angles + torch.cat([-b, a], -1) * angles
        return torch.cat([rotated, rotated], 1)

    return turned


def cases(scale: int) -> list[Case]:
    """Name, function, shapes of its arguments, and FLOPs of both passes."""
    rows, patches = 8192 // scale, 32768 // scale
    square = sum(length**2 for length in IMAGES)
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
        ("SwiGLU", lambda g, u: F.silu(g) * u, [(rows, 6144)] * 2, 0),
        ("layer norm", lambda x: F.layer_norm(x, (1024,)), [(patches, 1024)], 0),
        ("product of a decoder", F.linear, [(rows, 2048), (6144, 2048)], 6 * rows * 2048 * 6144),
        (
            "product of a tower",
            F.linear,
            [(patches, 1024), (4096, 1024)],
            6 * patches * 1024 * 4096,
        ),
        *(
            [
                (
                    "varlen attention of images",
                    full_varlen,
                    [(1, 16, sum(IMAGES), 64)] * 3,
                    12 * square * 1024,
                )
            ]
            if scale == 1
            else []
        ),
        (
            "attention of one image",
            F.scaled_dot_product_attention,
            [(1, 16, 11600 // scale, 64)] * 3,
            12 * (11600 // scale) ** 2 * 1024,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--scale", type=int, default=1, help="divisor of the rows, to try this file"
    )
    given = parser.parse_args()
    print(json.dumps({"conditions": conditions()}), flush=True)
    for name, function, shapes, flops in cases(given.scale):
        inputs = [
            torch.randn(shape, device=given.device, dtype=torch.bfloat16).requires_grad_()
            for shape in shapes
        ]
        gradient = torch.randn_like(function(*inputs))

        def both(
            function: Callable[..., torch.Tensor] = function,
            inputs: list[torch.Tensor] = inputs,
            gradient: torch.Tensor = gradient,
        ) -> None:
            torch.autograd.grad(function(*inputs), inputs, gradient)

        seconds = Timer("both()", globals={"both": both}).blocked_autorange(min_run_time=0.2).median
        row = {"operator": name, "shapes": shapes, "ms": round(seconds * 1e3, 3)}
        print(json.dumps({**row, "tflops": round(flops / seconds / 1e12)} if flops else row))


if __name__ == "__main__":
    main()
