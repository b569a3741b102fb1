"""What the families with tiles have in common: a tower that encodes images of one size.

Each tile is an entry of a batch, so that the tower needs no packing. Image tokens have positions
like text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from flowtrain.cost.flops import Grid, Side
from flowtrain.models.errors import ModelError
from flowtrain.models.flops import TowerFlops
from flowtrain.models.huggingface import HuggingFaceFamily, bypass, without_bypass
from flowtrain.models.images import PixelLimits

_CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0, "internvl_vision": 1}
"""Tokens of a tile besides its patches, by `vision_config.model_type`."""


class TileFamily(HuggingFaceFamily):
    """The first number of a grid is the tiles of the image.

    Layers of the tower behind the last one that `vision_feature_layer` names are left out: the
    model ignores what they would compute, and a plain loop does not train them.

    Attributes:
        layers_name: Path of the tower's layers.
        unused_modules: Modules of the tower that do not contribute to a layer's output.
    """

    image_modules: ClassVar[tuple[str, ...]] = ("vision_tower", "multi_modal_projector")
    projector_modules: ClassVar[tuple[str, ...]] = ("multi_modal_projector",)
    tower_attention = "sdpa"
    axes = 1
    layers_name: ClassVar[str] = "encoder.layers"
    unused_modules: ClassVar[tuple[str, ...]] = ("post_layernorm", "head")

    def __init__(self, folder: Path, *, projector_side: Side) -> None:
        super().__init__(folder, projector_side=projector_side)
        vision = self.config.vision_config
        kind = vision.model_type
        if kind not in _CLASS_TOKENS:
            raise ModelError(
                f"{folder}/config.json: vision_config.model_type={kind} is not supported; use a "
                f"model whose tower is one of {', '.join(_CLASS_TOKENS)}"
            )
        self._side = _square(vision.image_size, f"{folder}/config.json: vision_config.image_size")
        patch = _square(vision.patch_size, f"{folder}/config.json: vision_config.patch_size")
        self._patches = (self._side // patch) ** 2
        self._tile_tokens = self._patches + _CLASS_TOKENS[kind]
        chosen = self.config.vision_feature_layer
        self._chosen: list[int] = [chosen] if isinstance(chosen, int) else list(chosen)
        # Number 0 is the input of the first layer.
        outputs = vision.num_hidden_layers + 1
        self._depth = max(layer % outputs for layer in self._chosen)
        width = vision.hidden_size
        self._tower_flops = TowerFlops(
            depth=self._depth,
            width=width,
            mlp_flops=4.0 * width * vision.intermediate_size,
            patch_values=3 * patch**2,
        )
        # Fields side by side: those of several layers, or of the patches that one token merges.
        self._tower_width = width * len(self._chosen)

    @property
    def fields(self) -> dict[str, int]:  # type: ignore[override]
        if self.projector_side == "encoder":
            return {"features": self._width}
        return {"tower": self._tower_width}

    def _refuse(self, limits: PixelLimits) -> None:
        if limits:
            raise ModelError(
                f"data.min_pixels={limits.min_pixels}, data.max_pixels={limits.max_pixels}: "
                f"{self.config.model_type} makes tiles of {self._side} x {self._side} pixels, and "
                "does not scale images by limits; set both to null"
            )

    def _prepare(self, model: Any) -> None:
        tower = model.model.vision_tower
        # The weights remain, since the trained model is to have all of them.
        for layer in tower.get_submodule(self.layers_name)[self._depth :]:
            layer.requires_grad_(False)
            layer.forward = _skip
        for name in self.unused_modules:
            if isinstance(unused := getattr(tower, name, None), torch.nn.Module):
                unused.requires_grad_(False)

    def _image_flops(self, grid: Grid) -> tuple[float, float]:
        tiles = grid[0]
        tower = self._tower_flops(
            patches=tiles * self._patches,
            tokens=tiles * self._tile_tokens,
            squares=tiles * self._tile_tokens**2,
        )
        return tower, tiles * self._projector_flops

    def _bypass_projector(self, model: Any) -> None:
        bypass(model.multi_modal_projector, lambda features: features)

    def _project(self, model: Any, rows: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        return without_bypass(model.multi_modal_projector, rows)

    @property
    @abstractmethod
    def _projector_flops(self) -> float:
        """Forward FLOPs of the projector for a tile."""


def _skip(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden


def two_linear_flops(rows: int, width: int, out: int) -> float:
    """Forward FLOPs of a projector of two linear layers: from `width` to `out` to `out`."""
    return 2.0 * rows * (width * out + out * out)


def _square(size: Any, name: str) -> int:
    """Side of a square that a configuration gives as one number or two."""
    sides = set(size) if isinstance(size, Sequence) else {size}
    if len(sides) != 1:
        raise ModelError(f"{name}={size}: only square images are supported; use another model")
    return int(sides.pop())
