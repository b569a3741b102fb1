"""Gather and scatter as operators of torch, on the CPU; tests/gpu has the same on a device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from row_layouts import PAIRS, draw, gathered, same_bits, scattered

from flowtrain.train.records.gather import (
    GATHER,
    SCATTER,
    gather_rows,
    pieces_of,
    scatter_rows,
)


@pytest.mark.parametrize(("slab", "packed"), PAIRS)
def test_rows_come_and_go_as_by_plain_torch(slab: torch.dtype, packed: torch.dtype) -> None:
    for seed in range(20):
        layout = draw(seed, slab)
        size = {"rows": layout.rows, "width": layout.width}
        out = gather_rows(layout.memories, layout.pieces, **size, dtype=packed)
        assert same_bits(out, gathered(layout, packed))
        rows = torch.randn(layout.rows, layout.width).to(packed)
        expected = scattered(layout, rows)
        scatter_rows(rows, layout.pieces, layout.memories)
        for mine, theirs in zip(layout.memories, expected, strict=True):
            assert same_bits(mine, theirs)


def test_the_gradient_of_a_gather_is_its_scatter() -> None:
    layout = draw(3, torch.bfloat16)
    seed = torch.randn(layout.rows, layout.width)
    grads: list[Sequence[torch.Tensor]] = []
    for gather in (
        lambda: gather_rows(
            layout.memories,
            layout.pieces,
            rows=layout.rows,
            width=layout.width,
            dtype=torch.float32,
        ),
        lambda: gathered(layout, torch.float32),
    ):
        for memory in layout.memories:
            memory.requires_grad_()
        grads.append(torch.autograd.grad(gather().square(), layout.memories, seed))
    for mine, theirs in zip(*grads, strict=True):
        assert same_bits(mine, theirs)


def test_autograd_sees_that_a_scatter_changed_what_it_saved() -> None:
    layout = draw(4, torch.float32)
    leaf = torch.ones_like(layout.memories[0], requires_grad=True)
    product = (leaf * layout.memories[0]).sum()
    scatter_rows(torch.zeros(layout.rows, layout.width), layout.pieces, layout.memories)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_torch_accepts_the_operators() -> None:
    layout = draw(5, torch.float32)
    leaves = [memory.clone().requires_grad_() for memory in layout.memories]
    torch.library.opcheck(
        GATHER, (leaves, layout.pieces, layout.rows, layout.width, torch.bfloat16)
    )
    packed = torch.randn(layout.rows, layout.width)
    torch.library.opcheck(SCATTER, (packed, layout.pieces, layout.memories))


def test_a_compiled_function_is_not_compiled_again_for_other_slabs() -> None:
    def loss(
        memories: list[torch.Tensor], pieces: torch.Tensor, rows: int, width: int
    ) -> torch.Tensor:
        packed = gather_rows(memories, pieces, rows=rows, width=width, dtype=torch.float32)
        return packed.square().sum()

    torch.compiler.reset()
    memories = [torch.randn(4096, dtype=torch.bfloat16, requires_grad=True)]
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    for sizes, stance in (([3, 5], "default"), ([7, 2, 9, 4], "fail_on_recompile")):
        offsets = [64 * i for i in range(len(sizes))]
        pieces = pieces_of([0] * len(sizes), offsets, sizes, width=4, planes=1)
        arguments = (memories, pieces, sum(sizes), 4)
        with torch.compiler.set_stance(stance):
            (mine,) = torch.autograd.grad(compiled(*arguments), memories)
        (theirs,) = torch.autograd.grad(loss(*arguments), memories)
        assert same_bits(mine, theirs)


def test_a_wrong_table_is_refused_with_what_is_wrong() -> None:
    memories = [torch.zeros(40)]

    def gather(*pieces: list[int], rows: int = 4) -> None:
        gather_rows(memories, torch.tensor(pieces), rows=rows, width=4, dtype=torch.float32)

    gather([0, 8, 2, 2], [0, 0, 2, 0])
    with pytest.raises(ValueError, match="row 2 belongs to no piece"):
        gather([0, 0, 2, 0])
    with pytest.raises(ValueError, match="row 1 belongs to two pieces"):
        gather([0, 0, 2, 0], [0, 8, 2, 1])
    with pytest.raises(ValueError, match=r"piece 1: .* not within the 40 of memory 0"):
        gather([0, 0, 2, 0], [0, 36, 2, 2])
    twice = torch.tensor([[0, 0, 2, 0], [0, 4, 2, 2]])
    with pytest.raises(ValueError, match="share no element"):
        scatter_rows(torch.zeros(4, 4), twice, memories)
    with pytest.raises(ValueError, match="int64 on the CPU"):
        gather_rows(memories, twice.int(), rows=4, width=4, dtype=torch.float32)
