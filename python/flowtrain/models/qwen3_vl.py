"""Qwen3-VL: M-RoPE, and deepstack features that pass to the backbone beside the pooled ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from flowtrain.cost.flops import Grid, ModuleFlops
from flowtrain.models import attention
from flowtrain.models.adapter import (
    ImageProcessor,
    LossOutput,
    PackedBatch,
    Part,
    VLMAdapter,
    Vocabulary,
)
from flowtrain.models.documents import Documents
from flowtrain.models.errors import ModelError
from flowtrain.models.qwen3_vl_flops import Qwen3VLFlops
from flowtrain.models.target_rows import compute_target_rows

if TYPE_CHECKING:
    from PIL.Image import Image

_PLACEHOLDERS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


class Qwen3VLImageProcessor(ImageProcessor):
    """The image half of the processor; its video half would need torchvision.

    Args:
        folder: Hugging Face folder with the image processor.
        vision: The vision part of the configuration.

    Raises:
        ModelError: The processor's patches are not those of the model.
    """

    def __init__(self, folder: Path, vision: Any) -> None:
        self._processor: Any = AutoImageProcessor.from_pretrained(folder)
        for name, key in (
            ("patch_size", "patch_size"),
            ("temporal_patch_size", "temporal_patch_size"),
            ("merge_size", "spatial_merge_size"),
        ):
            size, needed = getattr(self._processor, name), getattr(vision, key)
            if size != needed:
                raise ModelError(
                    f"{folder}: {name}={size} of the image processor (preprocessor_config.json, "
                    f"or processor_config.json) is not vision_config.{key}={needed} of "
                    "config.json; restore the model's own files"
                )
        self._patch: int = self._processor.patch_size
        self._merge: int = self._processor.merge_size
        self.patch_dim = 3 * self._processor.temporal_patch_size * self._patch**2

    def smallest_grid(self) -> Grid:
        side = self._patch * self._merge
        return self.grid(side, side)

    def grid(self, height: int, width: int) -> Grid:
        if self._processor.do_resize:
            height, width = smart_resize(
                height,
                width,
                factor=self._patch * self._merge,
                min_pixels=self._processor.size["shortest_edge"],
                max_pixels=self._processor.size["longest_edge"],
            )
        return 1, height // self._patch, width // self._patch

    def num_tokens(self, grid: Grid) -> int:
        return math.prod(grid) // self._merge**2

    def patches(self, image: Image) -> tuple[NDArray[np.float32], Grid]:
        out = self._processor(images=[image], return_tensors="np")
        frames, rows, columns = out["image_grid_thw"][0].tolist()
        return out["pixel_values"], (frames, rows, columns)


class Qwen3VLAdapter(VLMAdapter):
    """Splits Qwen3-VL at `get_image_features` / `mm_encoder_outputs`.

    An image token has its pooled feature and one feature per deepstack tap, side by side. Decoder
    layer i adds tap i. Taps beyond the last layer are not passed on, and their mergers do not
    train, as in the full model.
    """

    encoder_prefix = "model.visual."

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config = AutoConfig.from_pretrained(folder)
        ids = [getattr(self.config, name, None) for name in _PLACEHOLDERS]
        self.vocabulary = Vocabulary(
            size=self.config.get_text_config().vocab_size,
            image_id=self.config.image_token_id,
            image_start_id=self.config.vision_start_token_id,
            placeholder_ids=tuple(id_ for id_ in ids if id_ is not None),
        )
        vision = self.config.vision_config
        self._merge = vision.spatial_merge_size
        taps = sorted(layer for layer in vision.deepstack_visual_indexes if layer < vision.depth)
        self._taps = taps[: self.config.text_config.num_hidden_layers]
        self._width = self.config.text_config.hidden_size
        self.row_width = (1 + len(self._taps)) * self._width
        self._flops = Qwen3VLFlops(self.config)
        self._implementation = attention.register()

    def image_processor(self) -> ImageProcessor:
        return Qwen3VLImageProcessor(self._folder, self.config.vision_config)

    def sample_flops(
        self, num_tokens: int, grids: Sequence[Grid], *, num_targets: int
    ) -> ModuleFlops:
        return self._flops(num_tokens, grids, num_targets=num_targets)

    def build(
        self,
        part: Part,
        *,
        weights: Path | None,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> torch.nn.Module:
        if weights is None:
            torch.manual_seed(seed)
            model = AutoModelForImageTextToText.from_config(
                self.config, dtype=torch.float32, attn_implementation=self._implementation
            )
        else:
            loaded: Any = AutoModelForImageTextToText.from_pretrained(
                weights,
                dtype=dtype,
                attn_implementation=self._implementation,
                output_loading_info=True,
            )
            model, found = loaded
            # transformers would draw them, differently on each rank.
            if missing := sorted(found["missing_keys"]):
                raise ModelError(
                    f"{weights}: {len(missing)} weights of its config.json are missing, "
                    f"{missing[0]} for one; complete the folder, or give it as model.config to "
                    "draw all weights from train.seed"
                )
        vision = model.model.visual
        for layer, merger in zip(
            vision.deepstack_visual_indexes, vision.deepstack_merger_list, strict=True
        ):
            # The other mergers have no gradient in the full model, so the optimizer skips them.
            merger.requires_grad_(layer in self._taps)
        if part == "encoder":
            del model.model.language_model, model.lm_head
        elif part == "backbone":
            # The forward pass does not use the vision tower once features are given.
            del model.model.visual
        if part != "encoder":
            compute_target_rows(model.model.language_model.layers[-1])
        # Parameters alone: `.to(dtype)` would also round the rotary frequencies, which stay
        # float32 in a loaded model.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        model = model.to(device)
        model.train()
        return model

    def encode(
        self, encoder: torch.nn.Module, pixel_values: torch.Tensor, grids: torch.Tensor
    ) -> torch.Tensor:
        model: Any = encoder
        visual = model.model.visual
        device = pixel_values.device
        grids = grids.cpu()
        frames, rows, columns = grids.unbind(1)
        # A frame is a document. transformers takes these tensors instead of computing them, image
        # by image and on the device; one segment makes it call the attention once for all frames.
        indices, weights = get_vision_interpolation_indices_and_weights(
            grids,
            visual.num_grid_per_side,
            mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners,
            spatial_merge_size=self._merge,
        )
        out = visual(
            pixel_values,
            grid_thw=grids,
            return_dict=True,
            documents=Documents((rows * columns).repeat_interleave(frames).tolist()),
            cu_seqlens=torch.tensor([0, pixel_values.shape[0]]),
            position_ids=patch_positions(grids, self._merge).to(device),
            interp_indices=indices.to(device),
            interp_weights=weights.to(device),
        )
        taps = out.deepstack_features[: len(self._taps)]
        return torch.cat([out.pooler_output, *taps], dim=-1)

    def position_ids(
        self,
        input_ids: torch.Tensor,
        mm_token_type_ids: torch.Tensor,
        grids: torch.Tensor,
        doc_lengths: Sequence[int] | None = None,
    ) -> torch.Tensor:
        types = mm_token_type_ids.numpy()
        if (types == 2).any():
            raise ModelError("Qwen3-VL: the sample has video tokens; only images can be trained")
        lengths = np.array([len(types)] if doc_lengths is None else doc_lengths)
        ends = lengths.cumsum()
        starts = ends - lengths
        is_image = types == 1
        # An image ends where its tokens or its document end.
        first, last = is_image.copy(), is_image.copy()
        first[1:] &= ~is_image[:-1]
        last[:-1] &= ~is_image[1:]
        first[starts], last[ends - 1] = is_image[starts], is_image[ends - 1]
        image_at = np.flatnonzero(first)
        runs = np.flatnonzero(last) + 1 - image_at
        frames, rows, columns = (grids.numpy() // [1, self._merge, self._merge]).T
        tokens = frames * rows * columns
        if not np.array_equal(runs, tokens):
            raise ModelError(
                f"Qwen3-VL: the tokens have runs of {runs.tolist()} image tokens, but the grids "
                f"make {tokens.tolist()}; tokenize with the processor that made the grids"
            )
        # Text continues from the largest position before it, so that an image of n tokens moves
        # the text after it by max(rows, columns) - n.
        moved = np.zeros(len(types) + 1, dtype=np.int64)
        moved[image_at + tokens] = np.maximum(rows, columns) - tokens
        moved = moved.cumsum()[:-1]
        out = np.empty((4, len(types)), dtype=np.int64)
        out[0] = np.arange(len(types)) - starts.repeat(lengths)
        out[1:] = out[0] + moved - moved[starts].repeat(lengths)
        # Image tokens have grid positions, which start at that of the first.
        row, column = rows.repeat(tokens), columns.repeat(tokens)
        number = np.arange(len(row)) - (tokens.cumsum() - tokens).repeat(tokens)
        axes = np.stack([number // column // row, number // column % row, number % column])
        out[1:, is_image] += axes - number
        return torch.from_numpy(out)

    def loss(
        self, backbone: torch.nn.Module, batch: PackedBatch, features: torch.Tensor | None
    ) -> LossOutput:
        model: Any = backbone
        self._check(model, batch, features)
        documents = Documents(batch.doc_lengths)
        outputs = {}
        if features is not None:
            pooled, *taps = features.split(self._width, dim=-1)
            # In the form of get_image_features: a tuple over images, here one for all of them.
            per_image: dict[str, Any] = {
                "pooler_output": (pooled,),
                "deepstack_features": [(tap,) for tap in taps],
            }
            outputs["image"] = BaseModelOutputWithDeepstackFeatures(**per_image)
        # A token predicts the next one of its document; the last one predicts nothing.
        targets = torch.roll(batch.labels, -1)
        targets[documents.boundaries(targets.device)[1:] - 1] = -100
        kept = (targets != -100).nonzero().flatten()
        hidden = model.model(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[:, None],
            attention_mask=None,
            use_cache=False,
            mm_encoder_outputs=outputs,
            documents=documents,
            target_rows=kept,
        ).last_hidden_state[0]
        logits = model.lm_head(hidden[kept])
        exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
        loss_sum = F.cross_entropy(logits.to(exact), targets[kept], reduction="sum")
        return LossOutput(loss_sum, int(kept.numel()))

    def _check(self, backbone: Any, batch: PackedBatch, features: torch.Tensor | None) -> None:
        """Check what an exact loss needs; the model itself would not warn."""
        tokens = batch.input_ids.shape[0]
        if batch.position_ids.shape != (4, tokens):
            raise ModelError(
                f"position_ids: shape {tuple(batch.position_ids.shape)} must be (4, {tokens}); "
                "with three rows documents would see each other"
            )
        if sum(batch.doc_lengths) != tokens:
            raise ModelError(
                f"doc_lengths: they sum to {sum(batch.doc_lengths)} tokens, and the row has "
                f"{tokens}"
            )
        images = int((batch.input_ids == self.vocabulary.image_id).sum())
        shape = (0, self.row_width) if features is None else tuple(features.shape)
        if shape != (images, self.row_width):
            raise ModelError(
                f"features: shape {shape}, but the image tokens of the row need "
                f"{(images, self.row_width)}; gather every tap of every image of the row"
            )
        chosen = backbone.config.text_config._attn_implementation
        if chosen != self._implementation:
            raise ModelError(
                f"attn_implementation={chosen}: packed documents would see each other; build the "
                f"model with {self._implementation}"
            )


def patch_positions(grids: torch.Tensor, merge: int) -> torch.Tensor:
    """Row and column of each patch in its frame, in the order of patches, shape [patches, 2].

    Args:
        grids: Frames, height and width of each image in patches, shape [images, 3].
        merge: Rows and columns of a block of patches, which make one token. Patches are in order
            block by block.
    """
    _, rows, columns = grids.unbind(1)
    per_frame, of_image = rows * columns, grids.prod(1)
    first = (of_image.cumsum(0) - of_image).repeat_interleave(of_image)
    within = (torch.arange(len(first)) - first) % per_frame.repeat_interleave(of_image)
    block, inner = within // merge**2, within % merge**2
    blocks = (columns // merge).repeat_interleave(of_image)
    return torch.stack(
        [block // blocks * merge + inner // merge, block % blocks * merge + inner % merge], dim=-1
    )
