"""Packed rows for vision-language models, from what the model's processor returns for samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flowtrain.cost.flops import Grid
from flowtrain.models.documents import Documents
from flowtrain.models.errors import ModelError
from flowtrain.models.registry import family_for
from flowtrain.packing import PackingError

_IGNORED = -100


class VlmCollator:
    """Makes one row of the samples of a microbatch, for the unmodified Hugging Face model.

        collate = VlmCollator("Qwen3-VL-8B-Instruct")
        loader = PackedLoader(
            dataset, 8, True, max_tokens=8192, targets="labels", collate_fn=collate
        )
        for batch, microbatch in loader:
            loss = model(**batch).loss * microbatch.mean_weight

    A sample is what the model's processor returns for it, without padding, and its `labels`:
    `input_ids`, and for images `pixel_values` with `image_grid_thw` or `image_sizes` where the
    processor returns them. Rows of tokens may have a leading dimension of 1. Other fields are not
    read.

    The batch has `input_ids` and `labels` of shape [1, tokens], the `position_ids` of the family
    with each document from 0, the image tensors of all documents, and `use_cache=False`. It has no
    attention mask: transformers then separates documents by their positions, with every attention
    implementation. The label of the first token of each document is masked, as nothing predicts it.

    **Attention.** `sdpa` computes a packed row under a dense mask, at the cost of one document of
    its length; `flash_attention_2` computes each document alone. FlowTrain's own attention does so
    too, on every device and without a further package. It needs the lengths of the documents, which
    `documents=True` adds to the batch:

        collate = VlmCollator(folder, documents=True)
        implementation = {"text_config": "flowtrain_varlen", "vision_config": "sdpa"}
        model = AutoModelForImageTextToText.from_pretrained(
            folder, attn_implementation=implementation
        )

    Args:
        folder: Hugging Face folder of the model: its configuration and its image processor.
        documents: Whether to add `documents` for FlowTrain's attention. Other implementations
            ignore it.
        always_image: Whether to append an image of zeros, with masked labels, to a row without
            images. Ranks of FSDP and ZeRO-3 wait for each other in every module, and so hang where
            one skips the vision tower. The row may then exceed `max_tokens` by the smallest image.

    Raises:
        ModelError: The folder cannot be read, or its model type has no family.
    """

    def __init__(
        self, folder: Path | str, *, documents: bool = False, always_image: bool = False
    ) -> None:
        self._family = family_for(Path(folder))
        self._images = self._family.image_processor()
        self._documents = documents
        self._blank = self._blank_document() if always_image else None

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make one row.

        Args:
            samples: Samples of one microbatch.

        Raises:
            PackingError: A sample has no labels or no target, is padded, has videos, or has other
                images than its tokens say.
        """
        documents = []
        for number, sample in enumerate(samples, 1):
            try:
                documents.append(self._document(sample))
            except ModelError as error:
                raise PackingError(
                    f"sample {number} of {len(samples)} in a microbatch: {error}"
                ) from error
        if self._blank is not None and all(document.pixels is None for document in documents):
            documents.append(self._blank)
        lengths = [len(document.input_ids) for document in documents]
        positions = torch.cat([document.position_ids for document in documents], dim=1)
        row: dict[str, Any] = {
            "input_ids": torch.cat([document.input_ids for document in documents])[None],
            "labels": torch.cat([document.labels for document in documents])[None],
            # Several axes stand in front of the batch.
            "position_ids": positions if len(positions) == 1 else positions[:, None],
            # With a cache, transformers would not separate the documents.
            "use_cache": False,
        }
        pixels = [document.pixels for document in documents if document.pixels is not None]
        if pixels:
            grids = [document.grids for document in documents if document.grids]
            row |= self._images.model_inputs(grids, torch.cat(pixels))
        if self._documents:
            row["documents"] = Documents(lengths)
        return row

    def _document(self, sample: Mapping[str, Any]) -> _Document:
        input_ids = _row(sample, "input_ids")
        labels = _row(sample, "labels").clone()
        if len(labels) != len(input_ids):
            raise ModelError(
                f"{len(labels)} labels, but {len(input_ids)} input_ids; give each token a label, "
                f"{_IGNORED} where it is no target"
            )
        mask = sample.get("attention_mask")
        if mask is not None and not (seen := torch.as_tensor(mask).bool()).all():
            raise ModelError(
                f"attention_mask: {int((~seen).sum())} of its {seen.numel()} tokens are padding; "
                "give samples without padding, as the processor returns them for one sample"
            )
        for name in ("pixel_values_videos", "video_grid_thw"):
            if sample.get(name) is not None:
                raise ModelError(f"{name}: only images can be packed; drop samples with videos")
        labels[0] = _IGNORED
        if (labels == _IGNORED).all():
            raise ModelError(
                f"labels: none of its {len(labels)} tokens is a target ({_IGNORED} is none, and "
                "nothing predicts the first one); drop the sample"
            )
        grids, pixels = self._read_images(sample)
        is_image = input_ids == self._family.image_id
        needed = sum(map(self._images.num_tokens, grids))
        if (found := int(is_image.sum())) != needed:
            raise ModelError(
                f"input_ids: {found} image tokens (id {self._family.image_id}), but its "
                f"pixel_values make {needed}; take both from one call of the model's processor, "
                "and do not truncate"
            )
        return self._placed(input_ids, labels, grids, pixels)

    def _placed(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        grids: list[Grid],
        pixels: torch.Tensor | None,
    ) -> _Document:
        types = (input_ids == self._family.image_id).long()
        return _Document(
            input_ids=input_ids,
            labels=labels,
            position_ids=self._family.position_ids(types, grids, [len(types)]),
            grids=grids,
            pixels=pixels,
        )

    def _read_images(self, sample: Mapping[str, Any]) -> tuple[list[Grid], torch.Tensor | None]:
        names = ("pixel_values", "image_grid_thw", "image_sizes")
        inputs = {
            name: torch.as_tensor(sample[name]) for name in names if sample.get(name) is not None
        }
        if not inputs or not all(map(len, inputs.values())):
            return [], None
        grids, pixels = self._images.read_inputs(inputs)
        shapes = [self._images.pixel_shape(grid) for grid in grids]
        needed = (sum(rows for rows, *_ in shapes), *shapes[0][1:])
        if pixels.shape != needed:
            raise ModelError(
                f"pixel_values: shape {tuple(pixels.shape)}, but the grids of its {len(grids)} "
                f"images need {needed}; take both from one call of the model's processor"
            )
        return grids, pixels

    def _blank_document(self) -> _Document:
        """The smallest image, as zeros, whose tokens are no targets."""
        grid = self._images.grid(*self._images.smallest_size, num_images=1)
        tokens = torch.full([self._images.num_tokens(grid)], self._family.image_id)
        pixels = torch.zeros(self._images.pixel_shape(grid))
        return self._placed(tokens, torch.full_like(tokens, _IGNORED), [grid], pixels)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Document:
    """One sample.

    Attributes:
        input_ids: Shape [tokens].
        labels: Shape [tokens].
        position_ids: Shape [axes, tokens].
        grids: Grids of its images.
        pixels: Pixels of its images, joined in the first dimension, or None.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    grids: list[Grid]
    pixels: torch.Tensor | None


def _row(sample: Mapping[str, Any], name: str) -> torch.Tensor:
    """A row of tokens, shape [tokens]."""
    if sample.get(name) is None:
        raise ModelError(
            f"no {name} beside {', '.join(sample)}; give the processor's tensors and `labels` "
            f"({_IGNORED} where a token is no target)"
        )
    row = torch.as_tensor(sample[name])
    if row.ndim == 2 and len(row) == 1:
        row = row[0]
    if row.ndim != 1 or not len(row) or row.is_floating_point():
        raise ModelError(
            f"{name}: {row.dtype} of shape {tuple(row.shape)}; give one row of at least one token"
        )
    return row.long()
