"""What of a model cannot be taken out in front of the cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForImageTextToText

from flowtrain.config import ConfigError
from flowtrain.models.tiny import SMALLEST, write_tiny_model
from flowtrain.train.connect.model import LoopModel


@pytest.fixture
def world() -> Iterator[None]:
    """This process as the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("own", "refused"),
    [
        ([], r"model.vision_tower .* call it for model.vision_tower too, before"),
        (
            ["vision_tower", "multi_modal_projector"],
            r"model.image_newline .* the model with ignored_params=\{model.model.image_newline\}$",
        ),
    ],
)
def test_parts_that_fsdp_gathers_with_the_language_model_are_refused(
    own: list[str], refused: str, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path, SMALLEST, family="llava_onevision")
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(tmp_path))
    for name in own:
        fully_shard(getattr(model.model, name))
    fully_shard(model)
    with pytest.raises(ConfigError, match=refused):
        LoopModel(model, "strict", tmp_path)


def test_a_model_that_torch_compile_has_wrapped_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^connect: torch\.compile .* connect the model itself"):
        LoopModel(torch.compile(torch.nn.Linear(1, 1)), "strict", tmp_path)
