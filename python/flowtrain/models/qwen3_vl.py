"""Qwen3-VL: M-RoPE, and deepstack features that pass to the backbone beside the pooled ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from transformers import AutoTokenizer
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from flowtrain.cost.activations import layer_norm
from flowtrain.cost.flops import Grid, Side
from flowtrain.cost.layers import Counts, Layer, Saved
from flowtrain.models.documents import Documents
from flowtrain.models.frame_cache import Tensors
from flowtrain.models.mrope import patch_positions
from flowtrain.models.packed_batch import PackedBatch
from flowtrain.models.qwen_videos import Qwen3VideoProcessor
from flowtrain.models.qwen_vl import QwenVL
from flowtrain.models.send import send_joined
from flowtrain.models.video_processor import VideoProcessor
from flowtrain.models.videos import NO_VIDEO_LIMITS, VideoLimits


class Qwen3VL(QwenVL):
    """An image token has its pooled feature and one feature per deepstack tap.

    Decoder layer i adds tap i. Taps beyond the last layer are not passed on, and their mergers do
    not train, as in the full model.
    """

    name = "Qwen3-VL"
    projector_modules = ("visual.merger", "visual.deepstack_merger_list")

    def __init__(self, folder: Path, *, projector_side: Side) -> None:
        super().__init__(folder, projector_side=projector_side)
        vision = self.config.vision_config
        taps = sorted(layer for layer in vision.deepstack_visual_indexes if layer < vision.depth)
        self._taps = taps[: self.config.text_config.num_hidden_layers]
        names = ["pooled", *(f"deepstack.{layer}" for layer in range(len(self._taps)))]
        width = self._width if projector_side == "encoder" else self._block_width
        self.fields = dict.fromkeys(names, width)

    def video_processor(self, limits: VideoLimits = NO_VIDEO_LIMITS) -> VideoProcessor:
        tokenizer: Any = AutoTokenizer.from_pretrained(self._folder)
        config = self.config
        tokens = tokenizer.convert_ids_to_tokens(
            [config.vision_start_token_id, config.video_token_id, config.vision_end_token_id]
        )
        return Qwen3VideoProcessor(self._folder, config.vision_config, limits, "".join(tokens))

    def _blocks_of(
        self, grids: Sequence[Grid], seconds: Sequence[float]
    ) -> tuple[Sequence[Grid], Sequence[float]]:
        blocks: list[Grid] = []
        for (frames, rows, columns), step in zip(grids, seconds, strict=True):
            # A frame of a video is a block of its own, and its time is in the text.
            blocks += [(1, rows, columns)] * frames if step else [(frames, rows, columns)]
        return blocks, ()

    def _prepare(self, model: Any) -> None:
        vision = model.model.visual
        for layer, merger in zip(
            vision.deepstack_visual_indexes, vision.deepstack_merger_list, strict=True
        ):
            # The other mergers have no gradient in the full model, so the optimizer skips them.
            merger.requires_grad_(layer in self._taps)
        model.model.language_model._deepstack_process = _AddTap()

    def _before_forward(self, backbone: Any, batch: PackedBatch) -> None:
        backbone.model.language_model._deepstack_process.rows = batch.visual

    def _image_layers(self) -> Sequence[Layer]:
        vision = self.config.vision_config
        # Numbers and weights of the positions that each patch is between.
        tower = self._tower_layers(
            [Saved("patches", 4, "weight", itemsize=8), Saved("patches", 4, "weight", itemsize=4)]
        )
        # Usually the next block of the tower keeps the input of a tap's merger, too.
        is_behind_cut = self.projector_side == "backbone"
        tap = (
            Saved("projected", self._block_width, "gradient" if is_behind_cut else "copy"),
            Saved("projected", 2),
        )
        taps = [
            self._merger_layer(f"deepstack_merger_list.{i}", tap, reaches_loss=layer in self._taps)
            for i, layer in enumerate(vision.deepstack_visual_indexes)
        ]
        # Where the backbone adds taps: the numbers of the image tokens in the row.
        norm = *layer_norm("vision_tokens", vision.hidden_size), Saved("projected", 1, itemsize=8)
        return [*tower, *taps, self._merger_layer("merger", norm)]

    def _image_counts(self, grid: Grid) -> Counts:
        frames, rows, columns = grid
        patches = frames * rows * columns
        return Counts(
            patches=patches,
            vision_tokens=patches,
            vision_pairs=frames * (rows * columns) ** 2,
            projected=patches / self._merge**2,
        )

    def encode(
        self, encoder: torch.nn.Module, pixel_values: torch.Tensor, grids: Sequence[Grid]
    ) -> torch.Tensor:
        model: Any = encoder
        visual = model.model.visual
        device = pixel_values.device
        # A frame is a document. transformers takes these tensors instead of computing them, image
        # by image and on the device; one segment makes it call the attention once for all frames.
        frames = self._frames(grids, partial(self._frame_tensors, visual))
        positions, indices, weights = (
            send_joined(each, device) for each in zip(*frames, strict=True)
        )
        out = visual(
            pixel_values,
            grid_thw=torch.tensor(grids),
            return_dict=True,
            documents=Documents([len(patches) for patches, *_ in frames], device),
            cu_seqlens=torch.tensor([0, pixel_values.shape[0]]),
            position_ids=positions,
            interp_indices=indices,
            interp_weights=weights,
        )
        taps = out.deepstack_features[: len(self._taps)]
        return torch.cat([out.pooler_output, *taps], dim=-1)

    def _frame_tensors(self, visual: Any, sizes: torch.Tensor) -> Iterable[Tensors]:
        """Positions of the patches of each image, and what to interpolate their embeddings from."""
        interpolated = get_vision_interpolation_indices_and_weights(
            sizes,
            visual.num_grid_per_side,
            mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners,
            spatial_merge_size=self._merge,
        )
        made = patch_positions(sizes, self._merge), *interpolated
        lengths = sizes.prod(1).tolist()
        return zip(*(tensor.split(lengths) for tensor in made), strict=True)

    def _project(self, model: Any, rows: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        visual = model.visual
        layers = list(self.config.vision_config.deepstack_visual_indexes)
        taps = [visual.deepstack_merger_list[layers.index(layer)] for layer in self._taps]
        fields = rows.split(self._block_width, dim=-1)
        features = map(self._merged, [visual.merger, *taps], fields)
        return torch.cat(list(features), dim=-1)

    def _encoder_output(self, features: torch.Tensor) -> Any:
        pooled, *taps = features.split(self._width, dim=-1)
        # A tuple over images, here one for all of them.
        per_image: dict[str, Any] = {
            "pooler_output": (pooled,),
            "deepstack_features": [(tap,) for tap in taps],
        }
        return BaseModelOutputWithDeepstackFeatures(**per_image)


class _AddTap:
    """Adds a tap to the rows of image tokens, in place of transformers' method.

    That finds the rows by a mask, for which the host waits for the device, twice for each tap in
    the forward pass and again in the backward pass.

    Attributes:
        rows: Indices of the image tokens of the row that comes next.
    """

    rows: torch.Tensor

    def __call__(self, hidden: torch.Tensor, _: torch.Tensor, tap: torch.Tensor) -> torch.Tensor:
        """Shapes [1, tokens, width], [1, tokens], and [image tokens, width]."""
        out: torch.Tensor = _Added.apply(hidden.flatten(0, 1), self.rows, tap.to(hidden.dtype))
        return out.view_as(hidden)


class _Added(torch.autograd.Function):
    """Sum of some rows with others; torch's `index_add` would keep these for its backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, rows: torch.Tensor, tap: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(rows)
        return hidden.index_add(0, rows, tap)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor]:
        (rows,) = ctx.saved_tensors
        return gradient, None, gradient.index_select(0, rows)
