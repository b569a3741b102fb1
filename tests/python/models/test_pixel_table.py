"""The table of a processor gives its floats to the last bit, or the processor is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flowtrain.models import pixel_table
from flowtrain.models.errors import ModelError
from flowtrain.models.pixel_table import PixelTable, all_values
from flowtrain.models.qwen_images import QwenImageProcessor
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model

MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)


@pytest.mark.parametrize("side", [8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_floats_are_those_of_the_processor_in_every_dtype(
    side: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def floats(values: torch.Tensor) -> torch.Tensor:
        return (values.float() / 255 - MEAN) / STD

    values = all_values(side)
    table = PixelTable(values, floats(values), "a folder")
    noise = torch.randint(256, (5, 3, 7, 9), dtype=torch.uint8)
    expected = floats(noise).to(dtype)
    assert torch.equal(table(noise, dtype), expected)
    monkeypatch.setattr(pixel_table, "_BLOCK", 2 * noise[0].numel())
    twice = table(noise[:, :, None], dtype, (5, 3, 2, 7, 9))
    assert torch.equal(twice, torch.stack([expected, expected], dim=2))


def test_floats_that_do_not_follow_from_8_bits_are_refused() -> None:
    values = all_values(8)
    two_of_a_value = torch.cat([values.float(), values.float() + 1])
    with pytest.raises(ModelError, match="a folder: the floats .* do not follow"):
        PixelTable(values.repeat(2, 1, 1, 1), two_of_a_value, "a folder")
    with pytest.raises(ModelError, match="do not follow"):  # Values are missing.
        PixelTable(values[:1], values[:1].float(), "a folder")


def test_a_processor_whose_steps_differ_from_transformers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path, SMALLEST)
    family = family_for(tmp_path)
    patches = QwenImageProcessor._patches

    def mirrored(self: QwenImageProcessor, image):  # type: ignore[no-untyped-def]
        return patches(self, image[:, :, ::-1])

    # The table is learned from patches of the same order, so that it alone would not show this.
    monkeypatch.setattr(QwenImageProcessor, "_patches", mirrored)
    with pytest.raises(ModelError, match="do not follow from scaled 8-bit values"):
        family.image_processor()
