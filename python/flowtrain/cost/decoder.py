"""Layers of a decoder, read from its Hugging Face configuration."""

from __future__ import annotations

from typing import Any

from flowtrain.cost.layers import Layer, Product, Unit


def decoder_layers(text: Any, *, prefix: str = "model.language_model") -> list[Layer]:
    """Decoder with grouped-query attention and SwiGLU, dense or with experts, and its output head.

    The head, and output projection and MLP of the last layer, run on the unit `targets`.

    Args:
        text: Configuration of the language model.
        prefix: Path of the language model.

    Raises:
        ValueError: The experts of the configuration are not those of a known kind.

    Source: the sums of Megatron-Bridge's `flop_utils.py`, which count all of these for every token.
    """
    d, heads = text.hidden_size, text.num_attention_heads
    kv = getattr(text, "num_key_value_heads", None) or heads
    head = getattr(text, "head_dim", None) or d // heads
    depth = text.num_hidden_layers
    attention = (
        # Query, and key and value.
        Product("tokens", 2.0 * d * head * heads + 4.0 * d * head * kv),
        Product("pairs", 4.0 * heads * head, has_weight=False),
    )
    layers = []
    for number in range(depth):
        unit: Unit = "targets" if number == depth - 1 else "tokens"
        products = (*attention, Product(unit, 2.0 * d * head * heads), *_mlp(text, number, unit))
        layers.append(Layer(name=f"{prefix}.layers.{number}", part="backbone", products=products))
    logits = Product("targets", 2.0 * d * text.vocab_size)
    return [*layers, Layer(name="lm_head", part="backbone", products=(logits,))]


def _mlp(text: Any, number: int, unit: Unit) -> list[Product]:
    """SwiGLU of one layer, or the router and those experts that a token is sent to."""
    d = text.hidden_size
    experts = getattr(text, "num_experts", None) or 0
    if not experts:
        # Other configurations of experts name theirs so.
        for name in ("num_local_experts", "n_routed_experts"):
            if getattr(text, name, None):
                raise ValueError(
                    f"text_config.model_type={text.model_type}: experts in {name} are not "
                    "supported; use a dense model, or one with num_experts"
                )
    every = getattr(text, "decoder_sparse_step", 1)
    is_dense = number in getattr(text, "mlp_only_layers", ()) or (number + 1) % every != 0
    if not experts or is_dense:
        return [Product(unit, 6.0 * d * text.intermediate_size)]
    chosen = text.num_experts_per_tok * 6.0 * d * text.moe_intermediate_size
    return [Product(unit, 2.0 * d * experts), Product(unit, chosen)]
