from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from operators import class_named
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from flowtrain.cost.flops import Grid
from flowtrain.models import ModelError, qwen3_vl
from flowtrain.models.attention import NAME, varlen_attention
from flowtrain.models.family import Family
from flowtrain.models.packed_batch import PackedBatch, pack
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model

CPU = torch.device("cpu")
IMAGE, TEXT = 5, 40


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen2_5_vl"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    path: Path = tmp_path_factory.mktemp("model")
    write_tiny_model(path, SMALLEST, family=request.param)
    return family_for(path)


def build(family: Family, side: str) -> Any:
    return family.build(side, weights=None, seed=1, dtype=torch.float64, device=CPU)  # type: ignore[arg-type]


Document = tuple[torch.Tensor, list[Grid]]


def document(*images: tuple[int, int], text: int = 9) -> Document:
    """Token ids with images of the given rows and columns of tokens, and their grids in patches."""
    generator = torch.Generator().manual_seed(text + len(images))
    ids = [torch.randint(TEXT, 90, (3,), generator=generator)]
    for rows, columns in images:
        ids += [torch.full((rows * columns,), IMAGE), torch.randint(TEXT, 90, (2,))]
    ids.append(torch.randint(TEXT, 90, (text,), generator=generator))
    return torch.cat(ids), [(1, 2 * rows, 2 * columns) for rows, columns in images]


def packed(family: Family, documents: list[Document]) -> PackedBatch:
    ids = torch.cat([ids for ids, _ in documents])
    lengths = [len(ids) for ids, _ in documents]
    grids = [grid for _, grids in documents for grid in grids]
    return pack(
        input_ids=ids,
        labels=ids.masked_fill(ids == IMAGE, -100),
        position_ids=family.position_ids((ids == IMAGE).long(), grids, lengths),
        grids=grids,
        doc_lengths=lengths,
        visual_ids=family.visual_ids,
        device=torch.device("cpu"),
    )


MIX = [document((2, 3)), document(), document((1, 4), (3, 1)), document((1, 1), text=15)]


def test_recomputed_layers_keep_the_target_rows_of_their_own_microbatch(
    family: Family,
) -> None:
    microbatches = [packed(family, [document(text=text)]) for text in (5, 12)]
    gradients = []
    for recomputed in (False, True):
        backbone = build(family, "backbone")
        if recomputed:
            backbone.model.activation_checkpointing_enable()
        # Both forwards come before the first backward, as in a pipeline.
        losses = [family.loss(backbone, batch, None).loss_sum for batch in microbatches]
        for loss in losses:
            loss.backward()
        gradients.append([p.grad for p in backbone.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_positions_of_a_row_equal_those_of_transformers_for_each_document(
    family: Family,
) -> None:
    full = build(family, "full")
    # The last two are an image alone, so that only the boundary separates their image tokens.
    image: Document = (torch.full((6,), IMAGE), [(1, 4, 6)])
    documents = [*MIX, image, image]
    row = packed(family, documents).position_ids.split([len(ids) for ids, _ in documents], dim=1)
    for ours, (ids, grids) in zip(row, documents, strict=True):
        truth, _ = full.model.get_rope_index(
            ids[None],
            (ids == IMAGE).int()[None],
            image_grid_thw=torch.tensor(grids) if grids else None,
        )
        assert torch.equal(ours[0], torch.arange(len(ids)))
        assert torch.equal(ours[1:], truth[:, 0])


def test_positions_of_videos_equal_those_of_transformers(family: Family) -> None:
    model = build(family, "full").model
    video_id = family.video_id
    assert video_id is not None
    grids, seconds = [(3, 4, 6), (1, 2, 2), (2, 2, 4)], [0.6840166666666666, 0.0, 1.25]
    # An image between videos, each of whose frames Qwen3-VL has behind a time.
    blocks = [[6] * 3, [], [2] * 2] if family.config.model_type == "qwen3_vl" else [[18], [], [4]]
    runs = [
        [torch.tensor([TEXT, *[video_id] * tokens]) for tokens in blocks[0]],
        [torch.tensor([TEXT, IMAGE, TEXT])],
        [torch.tensor([TEXT, *[video_id] * tokens]) for tokens in blocks[2]],
    ]
    ids = torch.cat([run for of_grid in runs for run in of_grid])
    types = (ids == IMAGE).long() + 2 * (ids == video_id)
    ours = family.position_ids(types.repeat(2), grids * 2, [len(ids)] * 2, seconds * 2)
    truth, _ = model.get_rope_index(
        ids[None],
        types[None].int(),
        image_grid_thw=torch.tensor(grids[1:2]),
        video_grid_thw=torch.tensor(grids[::2]),
        second_per_grid_ts=torch.tensor(seconds[::2]),
    )
    assert torch.equal(ours[1:], truth[:, 0].repeat(1, 2))


@pytest.mark.parametrize("frames", [1, 3])
def test_images_encoded_together_are_one_attention_call_a_layer(
    family: Family, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = build(family, "encoder")
    grids = [(frames, 4, 2), (1, 2, 6), (1, 6, 6)]
    pixels = torch.randn(8 * frames + 12 + 36, 96, dtype=torch.float64)
    encoder.model.set_attn_implementation("sdpa")
    plain = encoder.model.visual(pixels, grid_thw=torch.tensor(grids), return_dict=True)
    taps = getattr(plain, "deepstack_features", [])
    expected = torch.cat([plain.pooler_output, *taps], dim=-1)
    encoder.model.set_attn_implementation(NAME)
    alone = encoder.model.visual(pixels, grid_thw=torch.tensor(grids), return_dict=True)
    torch.testing.assert_close(alone.pooler_output, plain.pooler_output)
    lengths = []

    def counted_attention(*arguments: Any, **options: Any) -> Any:
        lengths.append(options["documents"].lengths)
        return varlen_attention(*arguments, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, NAME, counted_attention)
    torch.testing.assert_close(family.encode(encoder, pixels, grids), expected)
    full = [8] * frames + [12, 36]
    windows = {"qwen3_vl": full, "qwen2_5_vl": [8] * frames + [8, 4] + [16, 8, 8, 4]}
    in_windows = windows[family.config.model_type]
    assert lengths == [in_windows] * (SMALLEST.vision_depth - 1) + [full]


def test_another_attention_implementation_is_refused(family: Family) -> None:
    backbone = build(family, "backbone")
    backbone.model.set_attn_implementation("sdpa")
    with pytest.raises(ModelError, match="attn_implementation=sdpa"):
        family.loss(backbone, packed(family, [document()]), None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_rotary_frequencies_are_never_rounded(family: Family, dtype: torch.dtype) -> None:
    exact = dict(build(family, "full").named_buffers())
    cast = family.build("full", weights=None, seed=1, dtype=dtype, device=CPU)
    assert {parameter.dtype for parameter in cast.parameters()} == {dtype}
    for name, buffer in cast.named_buffers():
        assert buffer.dtype == torch.float32, name
        assert torch.equal(buffer, exact[name].float()), name


def test_rows_that_do_not_match_the_image_tokens_are_refused(family: Family) -> None:
    backbone = build(family, "backbone")
    batch = packed(family, [document((2, 2))])
    width = family.row_width
    for rows in (None, torch.zeros(3, width), torch.zeros(4, width - 1)):
        with pytest.raises(ModelError, match=rf"need \(4, {width}\)"):
            family.loss(backbone, batch, rows)


def test_image_tokens_that_do_not_match_the_grids_are_refused(family: Family) -> None:
    ids, grids = document((1, 2), (3, 1))
    with pytest.raises(ModelError, match=r"runs of \[2, 3\] .* make \[3, 2\]"):
        family.position_ids((ids == IMAGE).long(), grids[::-1], [len(ids)])


def test_taps_are_added_as_by_transformers() -> None:
    torch.manual_seed(0)
    mask = torch.rand(2, 6) < 0.5
    hidden = torch.randn(2, 6, 4, requires_grad=True)
    taps = [torch.randn(int(mask.sum()), 4, requires_grad=True) for _ in range(3)]
    theirs = class_named("Qwen3VLTextModel")._deepstack_process

    def added(add: Any) -> list[torch.Tensor]:
        out = hidden
        for tap in taps:
            out = add(out, mask, tap)
        return [out, *torch.autograd.grad(out.square().sum(), [hidden, *taps])]

    add = qwen3_vl._AddTap()
    add.rows = mask.flatten().nonzero().flatten()
    assert all(map(torch.equal, added(add), added(partial(theirs, None))))
