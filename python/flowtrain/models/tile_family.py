"""What the families with tiles have in common: a tower that encodes images of one size.

Each tile is an entry of a batch, so that the tower needs no packing. Image tokens have positions
like text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from flowtrain.cost.activations import layer_norm
from flowtrain.cost.flops import Grid, Side
from flowtrain.cost.layers import Counts, Layer
from flowtrain.cost.tower import Block, projector_layer, tower_layers
from flowtrain.models.errors import ModelError
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
        normalizes_features: Whether the projector begins with a norm.
    """

    image_modules: ClassVar[tuple[str, ...]] = ("vision_tower", "multi_modal_projector")
    projector_modules: ClassVar[tuple[str, ...]] = ("multi_modal_projector",)
    tower_attention = "sdpa"
    axes = 1
    layers_name: ClassVar[str] = "encoder.layers"
    unused_modules: ClassVar[tuple[str, ...]] = ("post_layernorm", "head")
    normalizes_features: ClassVar[bool] = False

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
        self._patch = _square(vision.patch_size, f"{folder}/config.json: vision_config.patch_size")
        self._patches = (self._side // self._patch) ** 2
        self._tile_tokens = self._patches + _CLASS_TOKENS[kind]
        chosen = self.config.vision_feature_layer
        self._chosen: list[int] = [chosen] if isinstance(chosen, int) else list(chosen)
        # Number 0 is the input of the first layer.
        outputs = vision.num_hidden_layers + 1
        self._depth = max(layer % outputs for layer in self._chosen)
        # Fields side by side: those of several layers, or of the patches that one token merges.
        self._tower_width = vision.hidden_size * len(self._chosen)
        self._tokens = self._tile_tokens

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

    def _image_layers(self) -> Sequence[Layer]:
        vision = self.config.vision_config
        tower = tower_layers(
            embedding="model.vision_tower.embeddings",
            blocks=f"model.vision_tower.{self.layers_name}",
            depth=self._depth,
            block=self.block,
            patch_values=3 * self._patch**2,
            # CLIP normalizes what the first block takes.
            embedding_saved=(
                layer_norm("vision_tokens", vision.hidden_size)
                if vision.model_type == "clip_vision_model"
                else ()
            ),
            left_out=vision.num_hidden_layers - self._depth,
        )
        projector = projector_layer(
            "model.multi_modal_projector",
            width=self._tower_width,
            hidden=self._width,
            out=self._width,
            activation=self.config.projector_hidden_act,
            norm=(layer_norm("projected", self._tower_width) if self.normalizes_features else ()),
        )
        return [*tower, projector]

    @property
    def block(self) -> Block:
        """Sizes and kind of the blocks of the tower."""
        vision = self.config.vision_config
        return Block(
            width=vision.hidden_size,
            heads=vision.num_attention_heads,
            inner=vision.intermediate_size,
            activation=vision.hidden_act,
        )

    def _image_counts(self, grid: Grid) -> Counts:
        tiles = grid[0]
        return Counts(
            patches=tiles * self._patches,
            vision_tokens=tiles * self._tile_tokens,
            vision_pairs=tiles * self._tile_tokens**2,
            projected=tiles * self._tokens,
        )

    def _bypass_projector(self, model: Any) -> None:
        bypass(model.multi_modal_projector, lambda features: features)

    def _project(self, model: Any, rows: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        return without_bypass(model.multi_modal_projector, rows)


def _skip(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden


def _square(size: Any, name: str) -> int:
    """Side of a square that a configuration gives as one number or two."""
    sides = set(size) if isinstance(size, Sequence) else {size}
    if len(sides) != 1:
        raise ModelError(f"{name}={size}: only square images are supported; use another model")
    return int(sides.pop())
