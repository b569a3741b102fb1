"""Packed rows for vision-language models: the unmodified model trains as on single samples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import add_videos
from reference_loop import Samples
from support import one_thread
from transformers import AutoConfig, AutoModelForImageTextToText

from flowtrain.data import VlmCollator
from flowtrain.data.digits import write_digits
from flowtrain.models import ModelError
from flowtrain.models.tiny import SMALLEST, TINY
from flowtrain.models.videos import FAMILIES_WITH_VIDEO
from flowtrain.packing import PackingError

COUNT = 12
VIDEO_ID = 6
VARLEN = {"text_config": "flowtrain_varlen", "vision_config": "sdpa"}
Inputs = dict[str, Any]


def write(folder: Path, family: str) -> list[Inputs]:
    """Samples as the model's processor returns them: texts, and one to three images."""
    shares = {"text_only": 0.25, "multi_image": 0.35}
    write_digits(folder, train=COUNT, heldout=0, seed=3, sizes=SMALLEST, family=family, **shares)
    samples = Samples(folder / "train.jsonl", folder / "model")
    return [doubled(samples[index]) for index in range(COUNT)]


def doubled(inputs: Inputs) -> Inputs:
    return {k: v.double() if k.startswith("pixel_values") else v for k, v in inputs.items()}


def model_of(folder: Path, attention: Any = "sdpa") -> Any:
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder / "model")
    model: Any = AutoModelForImageTextToText.from_config(
        config,
        attn_implementation=attention,
        experts_implementation="eager",  # The default has no float64.
    )
    return model.double()


def gradients(model: Any, batches: list[Inputs]) -> dict[str, torch.Tensor | None]:
    """Gradients of the sum of the losses of all target tokens."""
    for batch in batches:
        targets = int((batch["labels"][:, 1:] != -100).sum())
        (model(**batch).loss * targets).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Inputs]]:
    folder = tmp_path_factory.mktemp("qwen")
    return folder, write(folder, "qwen3_vl")


@pytest.mark.parametrize("family", TINY)
def test_a_packed_row_has_the_gradients_of_its_samples_alone(family: str, tmp_path: Path) -> None:
    samples = write(tmp_path, family)
    assert {len(s.get("pixel_values", ())) > 0 for s in samples} == {True, False}
    expected = gradients(model_of(tmp_path), samples)
    found = {}
    for name, attention in (("sdpa", "sdpa"), ("varlen", VARLEN)):
        collate = VlmCollator(tmp_path / "model", documents=name == "varlen")
        rows = [collate(samples[:7]), collate(samples[7:])]
        found[name] = gradients(model_of(tmp_path, attention), rows)
    for parameter, gradient in expected.items():
        for grads in found.values():
            packed = grads[parameter]
            if gradient is None or packed is None:
                assert gradient is packed
                continue
            torch.testing.assert_close(packed, gradient, rtol=1e-9, atol=1e-12)
    # With a cache, documents see each other: the comparison above would notice.
    row = VlmCollator(tmp_path / "model")(samples[:7])
    model = model_of(tmp_path)
    leaking = model(**row | {"use_cache": True}).loss
    assert abs(leaking - model(**row).loss) > 1e-5


@pytest.mark.parametrize("family", FAMILIES_WITH_VIDEO)
def test_a_packed_row_with_videos_has_the_gradients_of_its_samples_alone(
    family: str, tmp_path: Path
) -> None:
    write(tmp_path, family)
    data = tmp_path / "train.jsonl"
    add_videos(data)
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    # A video between two images.
    mixed = {
        "messages": [
            {"role": "user", "content": "<image>and<video>and<image>?"},
            {"role": "assistant", "content": "12"},
        ],
        "images": next(line["images"] for line in lines if line.get("images"))[:1] * 2,
        "videos": next(line["videos"] for line in lines if line["videos"])[:1],
    }
    data.write_text("".join(json.dumps(line) + "\n" for line in [*lines, mixed]))
    read = Samples(data, tmp_path / "model")
    samples = [doubled(read[index]) for index in range(COUNT + 1)]
    name = "pixel_values" if family == "internvl" else "pixel_values_videos"
    assert sum(name in sample for sample in samples) > 4
    expected = gradients(model_of(tmp_path), samples)
    collate = VlmCollator(tmp_path / "model", documents=True)
    found = gradients(model_of(tmp_path, VARLEN), [collate(samples[:6]), collate(samples[6:])])
    for parameter, gradient in expected.items():
        packed = found[parameter]
        if gradient is None or packed is None:
            assert gradient is packed
            continue
        torch.testing.assert_close(packed, gradient, rtol=1e-9, atol=1e-12)


def test_a_row_of_texts_reaches_the_tower_if_asked_to(qwen: tuple[Path, list[Inputs]]) -> None:
    folder, samples = qwen
    texts = [sample for sample in samples if "pixel_values" not in sample]
    plain = VlmCollator(folder / "model")(texts)
    row = doubled(VlmCollator(folder / "model", always_image=True)(texts))
    assert "pixel_values" not in plain and len(row["pixel_values"])
    model = model_of(folder)
    loss = model(**row).loss
    torch.testing.assert_close(loss, model(**plain).loss, rtol=1e-6, atol=0)
    loss.backward()
    tower = dict(model.model.visual.named_parameters())["patch_embed.proj.weight"].grad
    assert tower is not None and not tower.any()


def test_lists_are_samples_and_loader_workers_can_take_the_collator(
    qwen: tuple[Path, list[Inputs]],
) -> None:
    folder, samples = qwen
    collate = VlmCollator(folder / "model")
    lists = [{name: value.tolist() for name, value in sample.items()} for sample in samples]
    for sample in lists:
        for name in ("input_ids", "labels", "attention_mask", "mm_token_type_ids"):
            sample[name] = sample[name][0]
    kept = [tensor.clone() for tensor in (samples[0]["labels"], samples[0]["input_ids"])]
    row, same = collate(samples), collate(lists)
    for name in ("input_ids", "labels", "position_ids", "image_grid_thw"):
        assert torch.equal(row[name], same[name])
    assert torch.equal(samples[0]["labels"], kept[0])
    assert torch.equal(samples[0]["input_ids"], kept[1])
    ForkingPickler.dumps(collate)


def broken(sample: Inputs, name: str, value: Any) -> Inputs:
    changed = {key: tensor.clone() for key, tensor in sample.items()}
    if value is None:
        del changed[name]
    elif callable(value):
        changed[name] = value(changed[name])
    else:
        changed[name] = value
    return changed


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("labels", None, "no labels beside input_ids"),
        ("labels", lambda row: row[:, 1:], "labels, but .* input_ids; give each token"),
        ("labels", lambda row: row.fill_(-100), "none of its .* tokens is a target"),
        ("attention_mask", lambda row: row.index_fill(1, torch.tensor([0]), 0), "1 of its .*pad"),
        ("pixel_values", lambda pixels: pixels[1:], "pixel_values: shape .* grids of its 1 images"),
        ("pixel_values", None, "pixel_values is missing beside image_grid_thw"),
        ("image_grid_thw", lambda grids: grids[:, [0, 2, 1]].repeat(2, 1), "its 2 images need"),
        ("input_ids", lambda row: row.clamp(max=4), "0 image tokens .* pixel_values make"),
        ("input_ids", lambda row: row.expand(2, -1), "give one row of at least one token"),
        ("pixel_values_videos", torch.zeros(1), "video_grid_thw is missing beside pixel_values_v"),
        ("input_ids", lambda row: row.index_fill(1, torch.tensor([3]), VIDEO_ID), "1 video tokens"),
    ],
)
def test_a_sample_that_cannot_be_packed_is_named(
    name: str, value: Any, message: str, qwen: tuple[Path, list[Inputs]]
) -> None:
    folder, samples = qwen
    one = next(s for s in samples if len(s.get("image_grid_thw", ())) == 1)
    pattern = rf"^sample 2 of 2 in a microbatch: .*{message}"
    with pytest.raises(PackingError, match=pattern):
        VlmCollator(folder / "model")([one, broken(one, name, value)])


def test_a_tower_is_not_given_the_documents_of_the_text(qwen: tuple[Path, list[Inputs]]) -> None:
    folder, samples = qwen
    row = VlmCollator(folder / "model", documents=True)(samples)
    with pytest.raises(ModelError, match=r"`documents` have .* tokens, but the row of .*Vision"):
        model_of(folder, "flowtrain_varlen")(**row)
