"""The kernels that gather and scatter rows, against plain torch on the same device."""

from __future__ import annotations

import pytest
import torch
from row_layouts import PAIRS, draw, gathered, same_bits, scattered

from flowtrain.train.records.gather import DTYPES, gather_rows, pieces_of, scatter_rows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("slab", "packed"), PAIRS)
def test_rows_come_and_go_as_by_plain_torch(slab: torch.dtype, packed: torch.dtype) -> None:
    # The last layouts need more than the small table, and more than one launch.
    sizes = [(40, 12)] * 30 + [(2000, 20), (3, 400), (2, 3000)]
    for seed, (most_rows, slabs) in enumerate(sizes):
        layout = draw(seed, slab, "cuda", most_rows, slabs)
        size = {"rows": layout.rows, "width": layout.width}
        out = gather_rows(layout.memories, layout.pieces, **size, dtype=packed)
        assert same_bits(out, gathered(layout, packed)), seed
        rows = torch.randn(layout.rows, layout.width, device="cuda").to(packed)
        expected = scattered(layout, rows)
        scatter_rows(rows, layout.pieces, layout.memories)
        for mine, theirs in zip(layout.memories, expected, strict=True):
            assert same_bits(mine, theirs), seed


@pytest.mark.parametrize(("slab", "packed"), PAIRS)
def test_every_number_is_rounded_as_by_torch(slab: torch.dtype, packed: torch.dtype) -> None:
    """All 16-bit patterns, among them infinities and subnormals, and as many of float32."""
    bits = torch.arange(1 << 16, device="cuda", dtype=torch.int32)
    if slab == torch.float32:
        torch.manual_seed(0)
        low = torch.randint(0, 1 << 16, bits.shape, device="cuda", dtype=torch.int32)
        memory = (bits << 16 | low).view(slab)
    else:
        memory = bits.to(torch.uint16).view(slab)
    pieces = pieces_of([0], [0], [len(memory) // 64], width=64, planes=1)
    mine = gather_rows([memory], pieces, rows=len(memory) // 64, width=64, dtype=packed).flatten()
    theirs = memory.to(packed)
    number = ~theirs.isnan()
    assert torch.equal(mine.isnan(), ~number)
    assert same_bits(mine[number], theirs[number])


@pytest.mark.parametrize("slab", DTYPES)
def test_the_gradient_of_a_gather_is_its_scatter(slab: torch.dtype) -> None:
    layout = draw(3, slab, "cuda")
    seed = torch.randn(layout.rows, layout.width, device="cuda")
    leaves = [memory.requires_grad_() for memory in layout.memories]
    out = gather_rows(
        leaves, layout.pieces, rows=layout.rows, width=layout.width, dtype=torch.float32
    )
    mine = torch.autograd.grad(out.square(), leaves, seed)
    theirs = torch.autograd.grad(gathered(layout, torch.float32).square(), leaves, seed)
    for a, b in zip(mine, theirs, strict=True):
        assert same_bits(a, b)


def test_a_compiled_function_gathers_other_slabs() -> None:
    def loss(
        memories: list[torch.Tensor], pieces: torch.Tensor, rows: int, width: int
    ) -> torch.Tensor:
        packed = gather_rows(memories, pieces, rows=rows, width=width, dtype=torch.float32)
        return packed.square().sum()

    torch.compiler.reset()
    memories = [torch.randn(4096, dtype=torch.bfloat16, device="cuda", requires_grad=True)]
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    for sizes, stance in (([3, 5], "default"), ([7, 2, 9, 4], "fail_on_recompile")):
        offsets = [64 * i for i in range(len(sizes))]
        pieces = pieces_of([0] * len(sizes), offsets, sizes, width=4, planes=1)
        arguments = (memories, pieces, sum(sizes), 4)
        with torch.compiler.set_stance(stance):
            (mine,) = torch.autograd.grad(compiled(*arguments), memories)
        (theirs,) = torch.autograd.grad(loss(*arguments), memories)
        assert same_bits(mine, theirs)


def test_the_copies_run_on_the_current_stream() -> None:
    memory = torch.zeros(1 << 16, device="cuda")
    back = torch.zeros_like(memory)
    pieces = pieces_of([0], [0], [1 << 10], width=64, planes=1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # Some 50 ms: a copy on another stream would be earlier.
        memory.fill_(3)
        packed = gather_rows([memory], pieces, rows=1 << 10, width=64, dtype=torch.bfloat16)
        torch.cuda._sleep(100_000_000)
        packed.add_(1)
        scatter_rows(packed, pieces, [back])
        pieces.zero_()  # The table travelled with the launches.
    stream.synchronize()
    assert torch.all(back == 4)


def test_a_wrong_table_is_refused_on_a_device_too() -> None:
    memories = [torch.zeros(40, device="cuda")]
    with pytest.raises(ValueError, match="row 2 belongs to no piece"):
        gather_rows(memories, torch.tensor([[0, 0, 2, 0]]), rows=4, width=4, dtype=torch.float32)
    with pytest.raises(ValueError, match="share no element"):
        scatter_rows(
            torch.zeros(4, 4, device="cuda"),
            torch.tensor([[0, 0, 2, 0], [0, 4, 2, 2]]),
            memories,
        )
