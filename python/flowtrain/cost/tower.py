"""Layers of a vision tower and of a projector."""

from __future__ import annotations

from collections.abc import Collection

from flowtrain.cost.layers import Layer, Product


def tower_layers(
    *,
    embedding: str,
    blocks: str,
    depth: int,
    width: int,
    mlp_flops: float,
    patch_values: int,
    windowed: Collection[int] = (),
    left_out: int = 0,
) -> list[Layer]:
    """Vision transformer: patch embedding and blocks.

    Args:
        embedding: Path of the patch embedding.
        blocks: Path of the list of blocks.
        depth: Blocks that are computed.
        width: Hidden size.
        mlp_flops: FLOPs of the MLP of one block for one token.
        patch_values: Values of a patch, from which its embedding is made.
        windowed: Numbers of the blocks whose attention is within windows.
        left_out: Blocks behind these that only the plain model computes.
    """
    pixels = Product("patches", 2.0 * patch_values * width, is_first=True)
    layers = [Layer(name=embedding, part="encoder", products=(pixels,))]
    for number in range(depth + left_out):
        pairs = Product(
            "window_pairs" if number in windowed else "vision_pairs", 4.0 * width, has_weight=False
        )
        layers.append(
            Layer(
                name=f"{blocks}.{number}",
                part="encoder",
                products=(Product("vision_tokens", 8.0 * width**2 + mlp_flops), pairs),
                reaches_loss=number < depth,
                left_out=number >= depth,
            )
        )
    return layers


def projector_layer(
    name: str, *, width: int, hidden: int, out: int, normalized: bool, reaches_loss: bool = True
) -> Layer:
    """Projector of two linear layers, from `width` to `hidden` to `out`.

    Args:
        name: Path of the module.
        width: Values of its input.
        hidden: Values between the two.
        out: Values of its output.
        normalized: Whether a norm with weights is in front.
        reaches_loss: Whether the loss depends on its output.
    """
    first = Product("projected", 2.0 * width * hidden, is_first=not normalized)
    return Layer(
        name=name,
        part="projector",
        products=(first, Product("projected", 2.0 * hidden * out)),
        reaches_loss=reaches_loss,
    )
