"""Layers of a decoder, read from its Hugging Face configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowtrain.cost.activations import attention, mlp, rms_norm, routed_mlp
from flowtrain.cost.layers import Layer, Product, Saved, Unit

# Whether query and key are normalized, by `model_type`.
_NORMALIZES_HEADS = {
    "llama": False,
    "mistral": False,
    "qwen2": False,
    "qwen2_5_omni_text": False,
    "qwen2_5_vl_text": False,
    "qwen3": True,
    "qwen3_vl_moe_text": True,
    "qwen3_vl_text": True,
}


def decoder_layers(text: Any, *, prefix: str = "model.language_model") -> list[Layer]:
    """Decoder with grouped-query attention and SwiGLU, dense or with experts, and its output head.

    The head, and output projection and MLP of the last layer, run on the unit `targets`. What
    autograd keeps is known of decoders like Llama's, Qwen2's and Qwen3's, and of the experts of
    Qwen3-VL.

    Args:
        text: Configuration of the language model.
        prefix: Path of the language model.

    Raises:
        ValueError: The experts of the configuration are not those of a known kind.

    Source: the sums of Megatron-Bridge's `flop_utils.py`, which count all of these for every token.
    """
    sizes = _Sizes.of(text)
    d, query, key = sizes.width, sizes.query, sizes.key
    depth = text.num_hidden_layers
    layers = [
        Layer(
            name=f"{prefix}.embed_tokens",
            part="backbone",
            # Token ids, the mask of image tokens, and the rotary positions of all layers.
            saved=(
                Saved("tokens", 1, "weight", itemsize=8),
                Saved("tokens", 1, itemsize=1),
                Saved("tokens", 2 * sizes.head),
            ),
        )
    ]
    for number in range(depth):
        is_last = number == depth - 1
        unit: Unit = "targets" if is_last else "tokens"
        products = (
            # Query, and key and value.
            Product(
                "tokens",
                2.0 * d * query + 4.0 * d * key,
                side=query + 2 * key,
                kv_flops=4.0 * d * key,
                kv_heads=sizes.kv_heads,
            ),
            Product("pairs", 4.0 * query, has_weight=False),
            Product(unit, 2.0 * d * query, side=query),
            *_mlp(text, number, unit),
        )
        layers.append(
            Layer(
                name=f"{prefix}.layers.{number}",
                part="backbone",
                products=products,
                saved=_saved(text, sizes, number, unit),
                takes=("tokens", d),
            )
        )
    logits = Product("targets", 2.0 * d * text.vocab_size, side=text.vocab_size)
    # Input of the head, logarithms of the probabilities in float32, ids, and numbers of the rows.
    kept = (
        Saved("targets", d, "weight"),
        Saved("targets", text.vocab_size, itemsize=4, in_chunks=True),
        Saved("targets", 2, itemsize=8),
    )
    return [
        *layers,
        Layer(name=f"{prefix}.norm", part="backbone", saved=tuple(rms_norm("tokens", d))),
        Layer(name="lm_head", part="backbone", products=(logits,), saved=kept),
    ]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Values of a token, of its query and of its key, and how they are made of heads."""

    width: int
    heads: int
    kv_heads: int
    head: int

    @classmethod
    def of(cls, text: Any) -> _Sizes:
        width, heads = text.hidden_size, text.num_attention_heads
        kv_heads = getattr(text, "num_key_value_heads", None) or heads
        return cls(width, heads, kv_heads, getattr(text, "head_dim", None) or width // heads)

    @property
    def query(self) -> int:
        return self.heads * self.head

    @property
    def key(self) -> int:
        return self.kv_heads * self.head


def _mlp(text: Any, number: int, unit: Unit) -> list[Product]:
    """SwiGLU of one layer, or the router and those experts that a token is sent to."""
    d = text.hidden_size
    if not _has_experts(text, number):
        return [Product(unit, 6.0 * d * text.intermediate_size, side=text.intermediate_size)]
    chosen = text.num_experts_per_tok
    experts, inner = text.num_experts, text.moe_intermediate_size
    return [
        Product(unit, 2.0 * d * experts),
        Product(unit, chosen * 6.0 * d * inner, experts_per_chosen=experts / chosen, side=inner),
    ]


def _has_experts(text: Any, number: int) -> bool:
    """Whether the MLP of a layer is a mixture of experts."""
    if not getattr(text, "num_experts", None):
        # Other configurations of experts name theirs so.
        for name in ("num_local_experts", "n_routed_experts"):
            if getattr(text, name, None):
                raise ValueError(
                    f"text_config.model_type={text.model_type}: experts in {name} are not "
                    "supported; use a dense model, or one with num_experts"
                )
        return False
    every = getattr(text, "decoder_sparse_step", 1)
    return number not in getattr(text, "mlp_only_layers", ()) and (number + 1) % every == 0


def _saved(text: Any, sizes: _Sizes, number: int, unit: Unit) -> tuple[Saved, ...] | None:
    """Tensors that autograd keeps of a layer.

    Args:
        text: Configuration of the language model.
        sizes: Its sizes.
        number: The layer.
        unit: `targets` for the last layer, otherwise `tokens`.
    """
    d, query, key = sizes.width, sizes.query, sizes.key
    if text.model_type not in _NORMALIZES_HEADS:
        return None
    if _has_experts(text, number):
        swiglu = routed_mlp(
            unit,
            d,
            text.moe_intermediate_size,
            activation=text.hidden_act,
            experts=text.num_experts,
            chosen=text.num_experts_per_tok,
        )
    else:
        swiglu = mlp(unit, d, text.intermediate_size, activation=text.hidden_act, gated=True)
    if swiglu is None:
        return None
    heads: list[Saved] = []
    if _NORMALIZES_HEADS[text.model_type]:
        heads = rms_norm("tokens", query, groups=sizes.heads)
        heads += rms_norm("tokens", key, groups=sizes.kv_heads)
    if unit == "tokens":
        projected = [Saved(unit, query, "weight", joins=True)]
    else:
        # Rows of targets that the output projection takes; and the rows that it and the MLP make,
        # which are put between the others.
        projected = [
            Saved(unit, query, "weight"),
            Saved(unit, 2 * d),
        ]
    return (
        *rms_norm("tokens", d),
        Saved("tokens", d, "weight"),
        *heads,
        *attention("tokens", heads=sizes.heads, width=query, inputs=query + 2 * key),
        *projected,
        *rms_norm("tokens", d),
        *swiglu,
    )
