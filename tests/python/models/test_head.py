"""Chunks of the output head: the numbers of the whole head, for every kind of head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from flowtrain.models.head import head_loss

WIDTH, VOCABULARY, TOKENS = 8, 37, 23
CHUNK_BYTES = 5 * VOCABULARY * 8  # Five rows of float64: 23 rows are five chunks.


class Backbone(torch.nn.Module):
    """An embedding, whose rows are the hidden states, and a head with its loss."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=torch.float64)
        self.logit_bytes: int | None = None

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return head_loss(
            self.lm_head,
            self.embed_tokens(ids),
            targets,
            vocabulary=VOCABULARY,
            logit_bytes=self.logit_bytes,
        )


def with_adapter(model: Any) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
    peft.inject_adapter_in_model(config, model)


def tie(model: Any) -> None:
    model.lm_head.weight = model.embed_tokens.weight


def freeze(model: Any) -> None:
    model.lm_head.requires_grad_(False)


def shard(model: Any) -> None:
    fully_shard(model, reshard_after_forward=True)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def loss_and_gradients(model: Any, logit_bytes: int | None) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    ids, targets = torch.randint(VOCABULARY, (2, TOKENS), generator=random)
    model.logit_bytes = logit_bytes
    model.zero_grad()
    loss = model(ids, targets)
    (loss / 7).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **{n: getattr(g, "_local_tensor", g) for n, g in found.items()}}


@pytest.mark.parametrize(
    ("change", "trained"),
    [
        (lambda _: None, {"embed_tokens.weight", "lm_head.weight", "lm_head.bias"}),
        (freeze, {"embed_tokens.weight"}),
        (tie, {"embed_tokens.weight", "lm_head.bias"}),
        (
            with_adapter,
            {f"lm_head.lora_{name}.default.weight" for name in "AB"},
        ),
        (shard, {"embed_tokens.weight", "lm_head.weight", "lm_head.bias"}),
    ],
    ids=["bias", "frozen", "tied", "adapter", "sharded"],
)
def test_chunks_have_the_loss_and_the_gradients_of_the_whole_head(
    change: Callable[[Any], None], trained: set[str], one_rank: None
) -> None:
    torch.manual_seed(0)
    model = Backbone(bias=True)
    change(model)
    whole = loss_and_gradients(model, None)
    chunks = loss_and_gradients(model, CHUNK_BYTES)
    assert set(whole) == set(chunks) == {"loss", *trained}
    for name, value in whole.items():
        torch.testing.assert_close(chunks[name], value, rtol=1e-12, atol=1e-15)


def test_logits_at_the_limit_are_computed_once() -> None:
    model = Backbone()
    ids = torch.zeros(TOKENS, dtype=torch.long)
    calls = []
    model.lm_head.register_forward_hook(lambda _, args, __: calls.append(len(args[0])))
    for less, expected in ((0, [TOKENS]), (1, [12, 11, 11, 12])):
        calls.clear()
        model.logit_bytes = TOKENS * VOCABULARY * 8 - less
        model(ids, ids).backward()
        assert calls == expected


def test_a_limit_below_a_token_takes_one_at_a_time() -> None:
    model = Backbone()
    model.logit_bytes = 1
    ids = torch.arange(3)
    calls = []
    model.lm_head.register_forward_hook(lambda _, args, __: calls.append(len(args[0])))
    with torch.no_grad():
        model(ids, ids)
    assert calls == [1, 1, 1]
