"""Layers of a vision tower and of a projector."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from flowtrain.cost.activations import attention, layer_norm, mlp, rms_norm
from flowtrain.cost.layers import Layer, Product, Saved, Unit

Norm = Literal["layer", "rms"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Sizes and kind of the blocks of a vision transformer.

    Attributes:
        width: Hidden size.
        heads: Heads.
        inner: Values between the linear layers of the MLP.
        activation: Activation function of the MLP, `hidden_act` of the configuration.
        gated: Whether the MLP is gated.
        norm: The norm in front of attention and MLP.
        packed: Whether the inputs lie side by side in one row. Otherwise they are the entries of a
            batch.
        rotary: Whether packed blocks have rotary positions.
        fused: Whether one linear layer makes query, key and value of packed blocks.
        scaled: Whether the outputs of attention and MLP are scaled by weights.
        known: Whether the block has nothing besides these whose memory would be counted.
    """

    width: int
    heads: int
    inner: int
    activation: str
    gated: bool = False
    norm: Norm = "layer"
    packed: bool = False
    rotary: bool = True
    fused: bool = True
    scaled: bool = False
    known: bool = True

    def linear(self) -> Product:
        """The linear layers of a block: query, key, value and output, and the MLP."""
        width, inner = self.width, self.inner
        # FLOPs by the side that tensor parallelism divides: three of the width side by side, the
        # width, and that between the layers of the MLP.
        by_side = (
            (3.0 * width, 6.0 * width**2),
            (width, 2.0 * width**2),
            (inner, (6.0 if self.gated else 4.0) * width * inner),
        )
        flops = sum(each for _, each in by_side)
        side = flops / sum(each / side for side, each in by_side)
        return Product("vision_tokens", flops, side=side)

    def saved(self) -> tuple[Saved, ...] | None:
        """Tensors that autograd keeps of a block; None if they are not known."""
        unit: Unit = "vision_tokens"
        width = self.width
        norm = layer_norm if self.norm == "layer" else rms_norm
        inner = mlp(unit, width, self.inner, activation=self.activation, gated=self.gated)
        if inner is None or not self.known:
            return None
        # Rotary positions copy query and key, and a fused value is a view of what all three are in.
        copied = self.packed and self.rotary and self.fused
        inputs = 5 * width if copied else 3 * width
        # Without rotary positions transformers calls attention by chunks, and joins the outputs.
        joined = [Saved(unit, width, "weight", joins=self.rotary)] if self.packed else []
        return (
            *norm(unit, width),
            Saved(unit, width, "weight"),
            *attention(unit, heads=self.heads, width=width, inputs=inputs),
            *joined,
            *norm(unit, width),
            *inner,
            *([Saved(unit, 2 * width, "weight")] if self.scaled else []),
        )


def tower_layers(
    *,
    embedding: str,
    blocks: str,
    depth: int,
    block: Block,
    patch_values: int,
    embedding_saved: Sequence[Saved] = (),
    windowed: Collection[int] = (),
    left_out: int = 0,
) -> list[Layer]:
    """Vision transformer: patch embedding and blocks.

    Args:
        embedding: Path of the patch embedding.
        blocks: Path of the list of blocks.
        depth: Blocks that are computed.
        block: Their sizes and kind.
        patch_values: Values of a patch, from which its embedding is made.
        embedding_saved: What autograd keeps between the patch embedding and the blocks.
        windowed: Numbers of the blocks whose attention is within windows.
        left_out: Blocks behind these that only the plain model computes.
    """
    width = block.width
    layers = [
        Layer(
            name=embedding,
            part="encoder",
            products=(Product("patches", 2.0 * patch_values * width, is_first=True, side=width),),
            saved=(Saved("patches", patch_values, "weight"), *embedding_saved),
        )
    ]
    for number in range(depth + left_out):
        pairs: Unit = "window_pairs" if number in windowed else "vision_pairs"
        products = (
            block.linear(),
            Product(pairs, 4.0 * width, has_weight=False),
        )
        layers.append(
            Layer(
                name=f"{blocks}.{number}",
                part="encoder",
                products=products,
                reaches_loss=number < depth,
                left_out=number >= depth,
                saved=block.saved(),
                takes=("vision_tokens", width),
            )
        )
    return layers


def projector_layer(
    name: str,
    *,
    width: int,
    hidden: int,
    out: int,
    activation: str,
    norm: Sequence[Saved] = (),
    reaches_loss: bool = True,
) -> Layer:
    """Projector of two linear layers, from `width` to `hidden` to `out`.

    Args:
        name: Path of the module.
        width: Values of its input.
        hidden: Values between the two.
        out: Values of its output.
        activation: Activation function between the two.
        norm: What autograd keeps of the norm in front of them; empty if there is none.
        reaches_loss: Whether the loss depends on its output.
    """
    linear = mlp("projected", width, hidden, activation=activation, gated=False)
    return Layer(
        name=name,
        part="projector",
        products=(
            Product("projected", 2.0 * width * hidden, is_first=not norm, side=hidden),
            Product("projected", 2.0 * hidden * out, side=hidden),
        ),
        reaches_loss=reaches_loss,
        saved=None if linear is None else (*norm, *linear),
    )
