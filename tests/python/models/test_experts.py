"""FLOPs of a mixture of experts with dense layers between, which no small model has."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3VLMoeTextConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextModel

from flowtrain.cost import Counts, layer_flops
from flowtrain.cost.decoder import decoder_layers


def test_flops_of_experts_are_those_of_the_plain_model() -> None:
    config: Any = Qwen3VLMoeTextConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        decoder_sparse_step=2,
        mlp_only_layers=[1],
        rope_parameters={"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 1e4},
    )
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model: Any = Qwen3VLMoeTextModel(config)
    # Drawn as other weights, or all tokens would choose the same experts.
    for layer in model.layers:
        if hasattr(layer.mlp, "gate"):
            torch.nn.init.normal_(layer.mlp.gate.weight)
    tokens = 20
    with FlopCounterMode(display=False) as counter:
        hidden = model(input_ids=torch.arange(tokens)[None], use_cache=False).last_hidden_state
        forward = counter.get_total_flops()
        hidden.sum().backward()
    *layers, _ = decoder_layers(config)
    counts = Counts(tokens=tokens, pairs=tokens**2, targets=tokens)
    ours = layer_flops(layers, counts, {"backbone"})
    found = [sum(flops.forward for flops in ours), sum(flops.backward for flops in ours)]
    assert found == [forward, counter.get_total_flops() - forward]
