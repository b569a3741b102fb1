"""Qwen3-VL: M-RoPE, and deepstack taps that cross the seam beside the pooled features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from flowtrain.models import attention
from flowtrain.models.adapter import LossOutput, PackedBatch, Part, VLMAdapter
from flowtrain.models.errors import ModelError


class Qwen3VLAdapter(VLMAdapter):
    """Splits Qwen3-VL at `get_image_features` / `mm_encoder_outputs`.

    One image token carries its pooled feature and one feature per deepstack tap, side by side.
    Decoder layer i adds tap i. Taps beyond the last layer do not cross, and their mergers do not
    train, as in the full model.
    """

    encoder_prefix = "model.visual."

    def __init__(self, folder: Path) -> None:
        self.config = AutoConfig.from_pretrained(folder)
        vision = self.config.vision_config
        self._merge = vision.spatial_merge_size
        taps = sorted(layer for layer in vision.deepstack_visual_indexes if layer < vision.depth)
        self._taps = taps[: self.config.text_config.num_hidden_layers]
        self._width = self.config.text_config.hidden_size
        self.seam_width = (1 + len(self._taps)) * self._width
        self._implementation = attention.register()

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
            # transformers draws them, with other numbers in each rank.
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
            # In the full model these have no gradient: the optimizer passes them over.
            merger.requires_grad_(layer in self._taps)
        if part == "encoder":
            del model.model.language_model, model.lm_head
        elif part == "backbone":
            # The forward asks the tower for nothing once features are given.
            del model.model.visual
        # Weights alone: `.to(dtype)` would also round the rotary frequencies, which stay float32
        # in a loaded model.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        model = model.to(device)
        model.train()
        return model

    def encode(
        self, encoder: torch.nn.Module, pixel_values: torch.Tensor, grids: torch.Tensor
    ) -> torch.Tensor:
        model: Any = encoder
        out = model.model.visual(pixel_values, grid_thw=grids, return_dict=True)
        taps = out.deepstack_features[: len(self._taps)]
        return torch.cat([out.pooler_output, *taps], dim=-1)

    def position_ids(
        self, input_ids: torch.Tensor, mm_token_type_ids: torch.Tensor, grids: torch.Tensor
    ) -> torch.Tensor:
        types = mm_token_type_ids
        if bool((types == 2).any()):
            raise ModelError("Qwen3-VL: the sample has video tokens; only images can be trained")
        length = input_ids.shape[0]
        text = torch.arange(length)
        if grids.shape[0] == 0:
            return text.expand(4, length)
        # Text counts on from the largest position before it; an image's tokens lie on its grid.
        edges = F.pad((types == 1).long(), (1, 1)).diff()
        starts = (edges == 1).nonzero().flatten()
        runs = ((edges == -1).nonzero().flatten() - starts).tolist()
        expected = (grids.prod(-1) // self._merge**2).tolist()
        if runs != expected:
            raise ModelError(
                f"Qwen3-VL: the sample has runs of {runs} image tokens where its grids make "
                f"{expected}; tokenize it with the processor that made the grids"
            )
        out = torch.empty((3, length), dtype=torch.long)
        at = position = 0
        for start, grid in zip(starts.tolist(), grids.tolist(), strict=True):
            frames, rows, columns = grid[0], grid[1] // self._merge, grid[2] // self._merge
            out[:, at:start] = torch.arange(start - at) + position
            position += start - at
            at = start + frames * rows * columns
            axes = torch.meshgrid(
                torch.arange(frames), torch.arange(rows), torch.arange(columns), indexing="ij"
            )
            out[:, start:at] = torch.stack([axis.reshape(-1) for axis in axes]) + position
            position += max(rows, columns)
        out[:, at:] = torch.arange(length - at) + position
        return torch.cat([text[None], out])

    def loss(
        self, backbone: torch.nn.Module, batch: PackedBatch, features: torch.Tensor | None
    ) -> LossOutput:
        model: Any = backbone
        self._check(model, batch, features)
        boundaries = batch.boundaries()
        outputs = {}
        if features is not None:
            pooled, *taps = features.split(self._width, dim=-1)
            # As get_image_features gives them: a tuple of images, here all in one.
            per_image: dict[str, Any] = {
                "pooler_output": (pooled,),
                "deepstack_features": [(tap,) for tap in taps],
            }
            outputs["image"] = BaseModelOutputWithDeepstackFeatures(**per_image)
        hidden = model.model(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[:, None],
            attention_mask=None,
            use_cache=False,
            mm_encoder_outputs=outputs,
            cu_seq_lens_q=boundaries,
        ).last_hidden_state[0]
        # A token predicts the next one of its own document; the last of each predicts nothing.
        targets = torch.roll(batch.labels, -1)
        targets[boundaries[1:] - 1] = -100
        kept = (targets != -100).nonzero().flatten()
        logits = model.lm_head(hidden[kept])
        exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
        loss_sum = F.cross_entropy(logits.to(exact), targets[kept], reduction="sum")
        return LossOutput(loss_sum, int(kept.numel()))

    def _check(self, backbone: Any, batch: PackedBatch, features: torch.Tensor | None) -> None:
        """Conditions of an exact loss; where one fails, nothing in the model would warn."""
        tokens = batch.input_ids.shape[0]
        if batch.position_ids.shape != (4, tokens):
            raise ModelError(
                f"position_ids: shape {tuple(batch.position_ids.shape)} where (4, {tokens}) is "
                "needed; with three rows documents would see each other"
            )
        if sum(batch.doc_lengths) != tokens:
            raise ModelError(
                f"doc_lengths: {sum(batch.doc_lengths)} tokens in all where the row has {tokens}"
            )
        images = int((batch.input_ids == self.config.image_token_id).sum())
        shape = (0, self.seam_width) if features is None else tuple(features.shape)
        if shape != (images, self.seam_width):
            raise ModelError(
                f"features: shape {shape} where the image tokens of the row need "
                f"{(images, self.seam_width)}; gather every tap of every image of the row"
            )
        chosen = backbone.config.text_config._attn_implementation
        if chosen != self._implementation:
            raise ModelError(
                f"attn_implementation={chosen}: packed documents would see each other; build the "
                f"model with {self._implementation}"
            )
