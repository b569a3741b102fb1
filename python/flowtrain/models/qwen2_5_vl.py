"""Qwen2.5-VL: M-RoPE, and a vision tower most of whose layers attend within windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import AutoTokenizer
from transformers.vision_utils import get_vision_window_index

from flowtrain.cost.activations import rms_norm
from flowtrain.cost.flops import Grid, Side
from flowtrain.cost.layers import Counts, Layer, Saved
from flowtrain.models.documents import Documents
from flowtrain.models.frame_cache import Tensors
from flowtrain.models.mrope import patch_positions
from flowtrain.models.qwen_videos import Qwen25VideoProcessor
from flowtrain.models.qwen_vl import QwenVL
from flowtrain.models.send import send_joined
from flowtrain.models.video_processor import VideoProcessor
from flowtrain.models.videos import NO_VIDEO_LIMITS, VideoLimits


class Qwen25VL(QwenVL):
    """A frame is a document in the layers with full attention, and a window in the others."""

    name = "Qwen2.5-VL"
    projector_modules: ClassVar[tuple[str, ...]] = ("visual.merger",)

    def __init__(self, folder: Path, *, projector_side: Side) -> None:
        super().__init__(folder, projector_side=projector_side)
        self.fields = {"pooled": self._width if projector_side == "encoder" else self._block_width}
        vision = self.config.vision_config
        self._full = frozenset(vision.fullatt_block_indexes)
        self._window = vision.window_size // self._merge // vision.patch_size * self._merge

    def video_processor(self, limits: VideoLimits = NO_VIDEO_LIMITS) -> VideoProcessor:
        tokenizer: Any = AutoTokenizer.from_pretrained(self._folder)
        placeholder = tokenizer.convert_ids_to_tokens(self.config.video_token_id)
        return Qwen25VideoProcessor(self._folder, self.config.vision_config, limits, placeholder)

    def _blocks_of(
        self, grids: Sequence[Grid], seconds: Sequence[float]
    ) -> tuple[Sequence[Grid], Sequence[float]]:
        if not any(seconds):
            return grids, ()
        per_second = np.float32(self.config.vision_config.tokens_per_second)
        return grids, [float(per_second * np.float32(time)) if time else 1.0 for time in seconds]

    def _prepare(self, model: Any) -> None:
        for number, block in enumerate(model.model.visual.blocks):
            hook = _attend_to("frames" if number in self._full else "windows")
            block.attn.register_forward_pre_hook(hook, with_kwargs=True)

    def _image_layers(self) -> Sequence[Layer]:
        vision = self.config.vision_config
        tower = self._tower_layers(
            # Numbers of the tokens in the order of the windows.
            [Saved("projected", 1, itemsize=8)],
            norm="rms",
            gated=True,
            windowed=set(range(vision.depth)) - self._full,
        )
        norm = rms_norm("vision_tokens", vision.hidden_size)
        # The tower returns from the order of the windows behind the merger, or where it would be.
        is_behind_cut = self.projector_side == "backbone"
        order = Saved("projected", 1, "input" if is_behind_cut else "gradient", itemsize=8)
        return [*tower, self._merger_layer("merger", [*norm, order])]

    def _image_counts(self, grid: Grid) -> Counts:
        frames, rows, columns = grid
        patches = frames * rows * columns
        window = self._window
        in_windows = _sum_of_squares(rows, window) * _sum_of_squares(columns, window)
        return Counts(
            patches=patches,
            vision_tokens=patches,
            vision_pairs=frames * (rows * columns) ** 2,
            window_pairs=frames * in_windows,
            projected=patches / self._merge**2,
        )

    def encode(
        self, encoder: torch.nn.Module, pixel_values: torch.Tensor, grids: Sequence[Grid]
    ) -> torch.Tensor:
        model: Any = encoder
        visual = model.model.visual
        device = pixel_values.device
        frames = self._frames(grids, partial(self._frame_tensors, visual))
        positions, orders, windows = zip(*frames, strict=True)
        starts = accumulate(map(len, orders[:-1]), initial=0)
        # transformers takes these tensors instead of computing them; one segment makes it call the
        # attention once for all frames or windows.
        row = torch.tensor([0, pixel_values.shape[0]])
        out = visual(
            pixel_values,
            grid_thw=torch.tensor(grids),
            return_dict=True,
            frames=Documents(list(map(len, positions)), device),
            windows=Documents(torch.cat(windows).tolist(), device),
            cu_seqlens=row,
            window_index=send_joined(list(map(torch.add, orders, starts)), device),
            cu_window_seqlens=row,
            position_ids=send_joined(positions, device),
        )
        pooled: torch.Tensor = out.pooler_output
        return pooled

    def _frame_tensors(self, visual: Any, sizes: torch.Tensor) -> Iterator[Tensors]:
        """Positions of the patches of each image, the order of its tokens, and their windows."""
        positions = patch_positions(sizes, self._merge).split(sizes.prod(1).tolist())
        for size, of_image in zip(sizes, positions, strict=True):
            order, edges = get_vision_window_index(
                size[None], self._merge, visual.window_size, visual.config.patch_size
            )
            yield of_image, order, edges.diff()

    def _project(self, model: Any, rows: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        return self._merged(model.visual.merger, rows)


def _attend_to(name: str) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Hook that gives an attention layer its documents: `frames` or `windows` of the call."""

    def choose(_: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        documents = {key: kwargs.pop(key, None) for key in ("frames", "windows")}
        return args, {**kwargs, "documents": documents[name]}

    return choose


def _sum_of_squares(length: int, window: int) -> int:
    """Sum of the squared lengths of the windows of a side."""
    return length // window * window**2 + (length % window) ** 2
