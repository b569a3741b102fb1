"""Packed rows for vision-language models, from what the model's processor returns for samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from flowtrain.data.files import IMAGE, VIDEO, Visual
from flowtrain.data.processed import ProcessedSample, ProcessedVisual, ProcessorOutputs
from flowtrain.models.documents import Documents
from flowtrain.models.errors import ModelError
from flowtrain.models.registry import family_for
from flowtrain.packing import PackingError


class VlmCollator:
    """Makes one row of the samples of a microbatch, for the unmodified Hugging Face model.

        collate = VlmCollator("Qwen3-VL-8B-Instruct")
        loader = PackedLoader(
            dataset, 8, True, max_tokens=8192, targets="labels", collate_fn=collate
        )
        for batch, microbatch in loader:
            loss = model(**batch).loss * microbatch.mean_weight

    A sample is what the model's processor returns for it, without padding, and its `labels`:
    `input_ids`; for images `pixel_values`, with `image_grid_thw` or `image_sizes` where the
    processor returns them; and for videos `pixel_values_videos`, with `video_grid_thw` and
    `second_per_grid_ts` in the same way. Rows of tokens may have a leading dimension of 1. Other
    fields are not read.

    The batch has `input_ids` and `labels` of shape [1, tokens], the `position_ids` of the family
    with each document from 0, the image and video tensors of all documents, and `use_cache=False`.
    It has no attention mask: transformers then separates documents by their positions, with every
    attention implementation. The label of the first token of each document is masked, as nothing
    predicts it.

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
            images and videos. Ranks of FSDP and ZeRO-3 wait for each other in every module, and so
            hang where one skips the vision tower. The row may then exceed `max_tokens` by the
            smallest image.

    Raises:
        ModelError: The folder cannot be read, or its model type has no family.
    """

    def __init__(
        self, folder: Path | str, *, documents: bool = False, always_image: bool = False
    ) -> None:
        self._outputs = ProcessorOutputs(family_for(Path(folder)))
        self._documents = documents
        self._blank = self._outputs.blank() if always_image else None

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make one row.

        Args:
            samples: Samples of one microbatch.

        Raises:
            PackingError: A sample has no labels or no target, is padded, or has other images or
                videos than its tokens say; or the model does not take the videos of the samples
                together.
        """
        documents = []
        for number, sample in enumerate(samples, 1):
            try:
                documents.append(self._outputs.read(sample))
            except ModelError as error:
                raise PackingError(
                    f"sample {number} of {len(samples)} in a microbatch: {error}"
                ) from error
        if self._blank is not None and not any(document.visuals for document in documents):
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
        if images := _of_kind(documents, IMAGE):
            pixels = torch.cat([image.pixels for each in images for image in each])
            grids = [[image.grid for image in each] for each in images]
            row |= self._outputs.images.model_inputs(grids, pixels)
        if videos := list(chain(*_of_kind(documents, VIDEO))):
            pixels = torch.cat([video.pixels for video in videos])
            try:
                row |= self._outputs.videos.model_inputs([video.grid for video in videos], pixels)
            except ModelError as error:
                raise PackingError(f"a microbatch of {len(samples)} samples: {error}") from error
        if self._documents:
            row["documents"] = Documents(lengths)
        return row


def _of_kind(documents: list[ProcessedSample], kind: Visual) -> list[list[ProcessedVisual]]:
    """The images, or videos, of each document that has some."""
    return [found for document in documents if (found := document.of_kind(kind))]
