"""The rotary positions of transformers with a backward pass of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from operators import module_of
from support import one_thread
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaAttention

from flowtrain.models import rotary
from flowtrain.models.own_functions import use_own_functions, with_own_functions
from flowtrain.models.rotary import ROTATIONS

_FILES = ("llama", "mistral", "qwen2", "qwen2_5_vl", "qwen3", "qwen3_vl", "qwen3_vl_moe")
_TOWERS = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
_TOKENS, _WIDTH = 30, 16


@pytest.fixture
def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary, "usable", lambda _: False)


def results(
    rotate: Callable[..., Any], heads_first: bool, dtype: torch.dtype, width: int = _WIDTH
) -> list[torch.Tensor]:
    """Rotated queries and keys, and their gradients."""
    draw = torch.Generator().manual_seed(0)
    made = []
    for heads in (6, 2):
        shape = (1, heads, _TOKENS, width) if heads_first else (_TOKENS, heads, width)
        made.append(torch.randn(shape, generator=draw).to(dtype).requires_grad_())
    shape = (1, _TOKENS, width) if heads_first else (_TOKENS, width)
    # Both halves of an angle's sine are equal in a model, but the function does not rely on it.
    cos, sin = (torch.randn(shape, generator=draw).to(dtype) for _ in range(2))
    rotated = rotate(*made, cos, sin)
    gradients = [torch.randn(x.shape, generator=draw).to(dtype) for x in rotated]
    torch.autograd.backward(rotated, gradients)
    return [*rotated, *(x.grad for x in made if x.grad is not None)]


@pytest.mark.usefixtures("without_kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("file", "name"),
    [(file, "apply_rotary_pos_emb") for file in _FILES]
    + [(file, "apply_rotary_pos_emb_vision") for file in _TOWERS],
)
def test_results_and_gradients_are_those_of_transformers_to_the_last_bit(
    file: str, name: str, dtype: torch.dtype
) -> None:
    heads_first = name == "apply_rotary_pos_emb"
    expected = results(getattr(module_of(file), name), heads_first, dtype)
    found = results(ROTATIONS[name], heads_first, dtype)
    assert len(found) == 4
    assert all(map(torch.equal, found, expected))


# Halves of whole vectors, and others.
@pytest.mark.parametrize("width", [64, 20])
@pytest.mark.parametrize("name", ROTATIONS)
def test_results_of_the_kernel_are_the_same(name: str, width: int) -> None:
    plain = getattr(module_of("qwen3_vl"), name)
    heads_first = name == "apply_rotary_pos_emb"
    expected = results(plain, heads_first, torch.float32, width)
    with one_thread():
        found = results(ROTATIONS[name], heads_first, torch.float32, width)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("file", _FILES)
def test_every_attention_of_a_family_is_found(file: str) -> None:
    module = module_of(file)
    layers = [
        kind
        for name, kind in vars(module).items()
        if name.endswith("Attention") and isinstance(kind, type)
    ]
    assert layers
    for layer in layers:
        assert with_own_functions(layer.forward) is not None, layer


def test_only_the_given_model_changes() -> None:
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, attn_implementation="eager"
    )
    layer, other = LlamaAttention(config, 0), LlamaAttention(config, 0)
    x = torch.randn(1, _TOKENS, 32)
    angles = torch.randn(2, 1, _TOKENS, _WIDTH)
    position_embeddings = (angles[0].cos(), angles[0].sin())
    expected = layer(x, position_embeddings, None)[0]
    plain = modeling_llama.apply_rotary_pos_emb
    use_own_functions(layer)
    found = layer(x, position_embeddings, None)[0]
    assert torch.equal(found, expected)
    assert "Rotary" in names_of_graph(found)
    assert "Rotary" not in names_of_graph(other(x, position_embeddings, None)[0])
    assert modeling_llama.apply_rotary_pos_emb is plain


def names_of_graph(out: torch.Tensor) -> str:
    """Names of the backward functions of a result."""
    waiting, seen = [out.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return " ".join(sorted({node.name() for node in seen}))
