from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from flowtrain.models import ModelError
from flowtrain.models.adapter import PackedBatch, VLMAdapter
from flowtrain.models.attention import NAME, varlen_attention
from flowtrain.models.documents import Documents
from flowtrain.models.registry import adapter_for
from flowtrain.models.tiny_qwen3_vl import SMALLEST, write_tiny_model

CPU = torch.device("cpu")
IMAGE, TEXT = 5, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_tiny_model(path, SMALLEST)
    return path


@pytest.fixture(scope="module")
def adapter(folder: Path) -> VLMAdapter:
    return adapter_for(folder)


def build(adapter: VLMAdapter, part: str) -> torch.nn.Module:
    return adapter.build(part, weights=None, seed=1, dtype=torch.float64, device=CPU)  # type: ignore[arg-type]


Document = tuple[torch.Tensor, torch.Tensor]


def document(*images: tuple[int, int], text: int = 9) -> Document:
    """Token ids with images of the given rows and columns of tokens, and their grids in patches."""
    generator = torch.Generator().manual_seed(text + len(images))
    ids = [torch.randint(TEXT, 90, (3,), generator=generator)]
    for rows, columns in images:
        ids += [torch.full((rows * columns,), IMAGE), torch.randint(TEXT, 90, (2,))]
    ids.append(torch.randint(TEXT, 90, (text,), generator=generator))
    grids = torch.tensor([[1, 2 * r, 2 * c] for r, c in images], dtype=torch.long).reshape(-1, 3)
    return torch.cat(ids), grids


def pixels_of(grids: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(int(grids.sum()))
    return torch.randn(int(grids.prod(-1).sum()), 96, generator=generator, dtype=torch.float64)


def packed(adapter: VLMAdapter, documents: list[Document]) -> PackedBatch:
    ids = torch.cat([ids for ids, _ in documents])
    lengths = [len(ids) for ids, _ in documents]
    grids = torch.cat([grids for _, grids in documents])
    return PackedBatch(
        input_ids=ids,
        labels=ids.masked_fill(ids == IMAGE, -100),
        position_ids=adapter.position_ids(ids, (ids == IMAGE).long(), grids, lengths),
        doc_lengths=lengths,
    )


def plain_loss(full: torch.nn.Module, ids: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
    """The unmodified model on one document alone."""
    full.set_attn_implementation("sdpa")
    images = {}
    if len(grids):
        images = {"pixel_values": pixels_of(grids), "image_grid_thw": grids}
    logits = full(
        input_ids=ids[None],
        mm_token_type_ids=(ids == IMAGE).int()[None],
        use_cache=False,
        **images,
    ).logits[0]
    labels = ids.masked_fill(ids == IMAGE, -100)[1:]
    return torch.nn.functional.cross_entropy(
        logits[:-1], labels, ignore_index=-100, reduction="sum"
    )


MIX = [document((2, 3)), document(), document((1, 4), (3, 1)), document((1, 1), text=15)]


def test_packed_documents_on_split_parts_equal_each_document_on_the_full_model(
    adapter: VLMAdapter,
) -> None:
    full = build(adapter, "full")
    total = sum(plain_loss(full, *doc) for doc in MIX)
    total.backward()
    encoder, backbone = build(adapter, "encoder"), build(adapter, "backbone")
    grids = torch.cat([grids for _, grids in MIX])
    rows = adapter.encode(encoder, torch.cat([pixels_of(g) for _, g in MIX if len(g)]), grids)
    leaf = rows.detach().requires_grad_()
    out = adapter.loss(backbone, packed(adapter, MIX), leaf)
    out.loss_sum.backward()
    rows.backward(leaf.grad)
    # RMSNorm and the vision tower's rotation round to float32 on the way.
    torch.testing.assert_close(out.loss_sum, total, rtol=1e-7, atol=0)
    parts = {**dict(encoder.named_parameters()), **dict(backbone.named_parameters())}
    assert set(parts) == set(dict(full.named_parameters()))
    for name, parameter in full.named_parameters():
        # The bias of keys shifts all scores of a query alike: its gradient is rounding alone.
        torch.testing.assert_close(parts[name].grad, parameter.grad, rtol=1e-5, atol=1e-6)


def test_recomputed_layers_keep_the_target_rows_of_their_own_microbatch(
    adapter: VLMAdapter,
) -> None:
    microbatches = [packed(adapter, [document(text=text)]) for text in (5, 12)]
    gradients = []
    for recomputed in (False, True):
        backbone = build(adapter, "backbone")
        if recomputed:
            backbone.activation_checkpointing_enable()
        # Both forwards come before the first backward, as in a pipeline.
        losses = [adapter.loss(backbone, batch, None).loss_sum for batch in microbatches]
        for loss in losses:
            loss.backward()
        gradients.append([p.grad for p in backbone.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])


@contextmanager
def counted() -> Iterator[FlopCounterMode]:
    """Counts FLOPs, attention included: only the math kernel lets the counter see its products."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def test_positions_of_a_row_equal_those_of_transformers_for_each_document(
    adapter: VLMAdapter,
) -> None:
    full = build(adapter, "full")
    # The last two are an image alone, so that only the boundary separates their image tokens.
    image = (torch.full((6,), IMAGE), torch.tensor([[1, 4, 6]]))
    documents = [*MIX, image, image]
    row = packed(adapter, documents).position_ids.split([len(ids) for ids, _ in documents], dim=1)
    for ours, (ids, grids) in zip(row, documents, strict=True):
        truth, _ = full.model.get_rope_index(
            ids[None], (ids == IMAGE).int()[None], image_grid_thw=grids if len(grids) else None
        )
        assert torch.equal(ours[0], torch.arange(len(ids)))
        assert torch.equal(ours[1:], truth[:, 0])
        assert torch.equal(ours, adapter.position_ids(ids, (ids == IMAGE).long(), grids))


def test_attention_costs_as_much_as_the_documents_one_by_one(adapter: VLMAdapter) -> None:
    query = torch.randn(1, 4, 64, 8)
    key = value = torch.randn(1, 2, 64, 8)
    layer = torch.nn.Module()
    layer.is_causal = True  # type: ignore[assignment]

    def flops(lengths: list[int]) -> int:
        documents = Documents(lengths)
        with counted() as counter:
            varlen_attention(layer, query, key, value, None, documents=documents)
        return counter.get_total_flops()

    assert flops([16] * 4) * 4 == flops([64]) > 0


def test_attention_calls_the_kernel_once_for_documents_of_equal_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    lengths = [5, 3, 3, 3, 2, 5, 5]
    query = torch.randn(1, 4, sum(lengths), 8)
    key, value = torch.randn(2, 1, 2, sum(lengths), 8)
    layer = torch.nn.Module()
    alone = torch.cat(
        [
            varlen_attention(layer, *parts, None, is_causal=True, documents=Documents([n]))[0]
            for n, *parts in zip(
                lengths, *(x.split(lengths, dim=2) for x in (query, key, value)), strict=True
            )
        ],
        dim=1,
    )
    calls = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def counted_kernel(q: torch.Tensor, *rest: torch.Tensor, **options: Any) -> torch.Tensor:
        calls.append(tuple(q.shape))
        return kernel(q, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted_kernel)
    together, _ = varlen_attention(
        layer, query, key, value, None, is_causal=True, documents=Documents(lengths)
    )
    assert calls == [(1, 4, 5, 8), (3, 4, 3, 8), (1, 4, 2, 8), (2, 4, 5, 8)]
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("frames", [1, 3])
def test_images_encoded_together_are_one_attention_call_a_layer(
    adapter: VLMAdapter, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = build(adapter, "encoder")
    grids = torch.tensor([[frames, 4, 2], [1, 2, 6], [1, 6, 2]])
    pixels = pixels_of(grids)
    encoder.set_attn_implementation("sdpa")
    plain = encoder.model.visual(pixels, grid_thw=grids, return_dict=True)
    expected = torch.cat([plain.pooler_output, *plain.deepstack_features], dim=-1)
    encoder.set_attn_implementation(NAME)
    lengths = []

    def counted_attention(*arguments: Any, **options: Any) -> Any:
        lengths.append(options["documents"].lengths)
        return varlen_attention(*arguments, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, NAME, counted_attention)
    torch.testing.assert_close(adapter.encode(encoder, pixels, grids), expected)
    assert lengths == [[8] * frames + [12, 12]] * SMALLEST.vision_depth


def test_a_causal_call_without_documents_is_refused() -> None:
    layer = torch.nn.Module()
    layer.is_causal = True  # type: ignore[assignment]
    rows = torch.randn(1, 2, 4, 8)
    with pytest.raises(ModelError, match="documents of the row would see each other"):
        varlen_attention(layer, rows, rows, rows, None)


def test_positions_and_attention_implementation_are_checked(adapter: VLMAdapter) -> None:
    backbone = build(adapter, "backbone")
    batch = packed(adapter, [document()])
    three = dataclasses.replace(batch, position_ids=batch.position_ids[1:])
    with pytest.raises(ModelError, match="with three rows documents would see each other"):
        adapter.loss(backbone, three, None)
    backbone.set_attn_implementation("sdpa")
    with pytest.raises(ModelError, match="attn_implementation=sdpa"):
        adapter.loss(backbone, batch, None)


def test_analytic_flops_equal_counted_flops(adapter: VLMAdapter) -> None:
    encoder, backbone = build(adapter, "encoder"), build(adapter, "backbone")
    ids, grids = document((4, 6), text=30)
    with counted() as counter:
        rows = adapter.encode(encoder, pixels_of(grids), grids).detach()
    forward = adapter.sample_flops(
        len(ids), [tuple(g) for g in grids.tolist()], num_targets=len(ids) - 25
    )
    assert counter.get_total_flops() == pytest.approx(forward.encoder + forward.projector, rel=0.02)
    with counted() as counter:
        adapter.loss(backbone, packed(adapter, [(ids, grids)]), rows)
    text = adapter.config.text_config
    # The counter counts all products of causal attention, which needs half of them.
    half = text.num_hidden_layers * 2 * text.num_attention_heads * text.head_dim * len(ids) ** 2
    assert counter.get_total_flops() - half == pytest.approx(forward.backbone, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_rotary_frequencies_are_never_rounded(adapter: VLMAdapter, dtype: torch.dtype) -> None:
    exact = dict(build(adapter, "full").named_buffers())
    cast = adapter.build("full", weights=None, seed=1, dtype=dtype, device=CPU)
    assert {parameter.dtype for parameter in cast.parameters()} == {dtype}
    for name, buffer in cast.named_buffers():
        assert buffer.dtype == torch.float32, name
        assert torch.equal(buffer, exact[name].float()), name


def test_features_that_do_not_match_the_image_tokens_are_refused(adapter: VLMAdapter) -> None:
    backbone = build(adapter, "backbone")
    batch = packed(adapter, [document((2, 2))])
    width = adapter.row_width
    tap = adapter.config.text_config.hidden_size
    for features in (None, torch.zeros(3, width), torch.zeros(4, width - tap)):
        with pytest.raises(ModelError, match=rf"need \(4, {width}\)"):
            adapter.loss(backbone, batch, features)


def test_image_tokens_that_do_not_match_the_grids_are_refused(adapter: VLMAdapter) -> None:
    ids, grids = document((1, 2), (3, 1))
    with pytest.raises(ModelError, match=r"runs of \[2, 3\] .* make \[3, 2\]"):
        adapter.position_ids(ids, (ids == IMAGE).long(), grids.flip(0))
