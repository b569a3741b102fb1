"""Compiled blocks: the same numbers, also recomputed and sharded, and no graph for each length."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from cost.memory import packed_row
from flash_attention_4 import FlashAttention4, flash_attention_4
from torch._dynamo.utils import counters
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from two_rows import family_of, loss_and_gradients, rows_of

from flowtrain.config.parallel import ModuleParallel
from flowtrain.cost.flops import Side
from flowtrain.models.attention import NAME
from flowtrain.models.compiled import compile_blocks
from flowtrain.models.tiny import TINY

__all__ = ["flash_attention_4"]

pytestmark = pytest.mark.filterwarnings(
    # torch looks at the gradients of what it compiles.
    "ignore:The .grad attribute of a Tensor:UserWarning",
    "ignore:FSDP2-wrapped module .* returned a view:UserWarning",
)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    torch.compiler.reset()
    counters.clear()


@pytest.mark.parametrize(
    ("kind", "level"), [*((kind, "full") for kind in TINY), ("qwen3_vl", "selective")]
)
def test_sharded_and_recomputed_they_give_equal_numbers(
    kind: str, level: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_of(tmp_path, kind)
    rows, calls = rows_of(family), 0
    attention = ALL_ATTENTION_FUNCTIONS[NAME]

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return attention(*args, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, NAME, counted)
    plain = loss_and_gradients(family, rows, ModuleParallel(), torch.float64)
    once, calls = calls, 0
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel = ModuleParallel(recompute=level)
        options: dict[str, Any] = {"shards": True, "backend": "aot_eager"}
        compiled = loss_and_gradients(family, rows, parallel, torch.float64, **options)
    finally:
        dist.destroy_process_group()
    assert calls == 2 * once > 0
    assert counters["stats"]["unique_graphs"] >= 4  # In front of and behind two kinds of attention.
    assert compiled.keys() == plain.keys()
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-12, atol=1e-15)


def test_rows_of_further_lengths_compile_nothing(tmp_path: Path) -> None:
    family = family_of(tmp_path, "qwen3_vl")
    options: dict[str, Any] = {"weights": None, "seed": 1, "dtype": torch.float64}
    options["device"] = torch.device("cpu")
    encoder, backbone = [family.build(side, **options) for side in get_args(Side)]
    for side in encoder, backbone:
        compile_blocks(family, side, attention=False, backend="aot_eager")
    images = family.image_processor()
    grids = [images.grid(*size, num_images=1) for size in ((16, 24), (8, 16), (24, 24))]

    def step(count: int, tokens: int) -> int:
        batch, pixels, *_ = packed_row(family, [(grids[:count], tokens), (grids[:1], 9)])
        backbone(batch, encoder(pixels.double(), batch.grids)).loss_sum.backward()
        return counters["stats"]["unique_graphs"]

    first = step(2, 30)
    assert [step(*row) for row in ((1, 21), (3, 55), (2, 44))] == [first] * 3


def test_blocks_whose_attention_is_one_kernel_are_compiled_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    family = family_of(tmp_path, "qwen3_vl")
    # In the first row the lengths of its document, its image and the row are equal.
    grid = family.image_processor().grid(16, 24, num_images=1)
    rows = [packed_row(family, [([grid], 0)])[:2], *rows_of(family)]
    expected = loss_and_gradients(family, rows, ModuleParallel(), torch.float64)
    kernels: FlashAttention4 = request.getfixturevalue("flash_attention_4")
    monkeypatch.setattr("flowtrain.models.attention.usable", lambda query, dropout: True)
    options: dict[str, Any] = {"backend": "aot_eager", "attention": True}
    recomputed = ModuleParallel(recompute="full")
    compiled = loss_and_gradients(family, rows, recomputed, torch.float64, **options)
    blocks = sum(len(family.block_names(side)) for side in get_args(Side))
    assert kernels.forwards == 2 * len(rows) * blocks
    # One of the tower's blocks, and one of the decoder's, for any documents.
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    assert compiled.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-10, atol=1e-13)


def test_layers_that_a_loop_compiles_take_any_number_of_documents(tmp_path: Path) -> None:
    family = family_of(tmp_path, "qwen3_vl")
    options: dict[str, Any] = {"weights": None, "seed": 1, "dtype": torch.float64}
    options["device"] = torch.device("cpu")
    encoder, backbone = [family.build(side, **options) for side in get_args(Side)]
    for layer in family.blocks(backbone):
        layer.compile(backend="aot_eager", dynamic=True)
    grid = family.image_processor().grid(16, 24, num_images=1)

    def step(*lengths: int) -> int:
        batch, pixels, *_ = packed_row(family, [([grid], length) for length in lengths])
        backbone(batch, encoder(pixels.double(), batch.grids)).loss_sum.backward()
        return counters["stats"]["unique_graphs"]

    first = step(30, 9)
    assert [step(*row) for row in ((21, 9, 8), (12, 13, 14, 15), (44,))] == [first] * 3
