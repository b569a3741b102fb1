"""Packed rows for vision-language models, from what the model's processor returns for samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flowtrain.cost.flops import Grid
from flowtrain.models.documents import Documents
from flowtrain.models.errors import ModelError
from flowtrain.models.registry import family_for
from flowtrain.packing import PackingError

if TYPE_CHECKING:
    from flowtrain.models.images import ImageProcessor
    from flowtrain.models.video_processor import VideoProcessor

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
        self._family = family_for(Path(folder))
        self._images = self._family.image_processor()
        self._documents = documents
        self._blank = self._blank_document() if always_image else None

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
                documents.append(self._document(sample))
            except ModelError as error:
                raise PackingError(
                    f"sample {number} of {len(samples)} in a microbatch: {error}"
                ) from error
        if self._blank is not None and not any(d.images or d.videos for d in documents):
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
        if images := [document.images for document in documents if document.images]:
            pixels = torch.cat([each.pixels for each in images])
            row |= self._images.model_inputs([each.grids for each in images], pixels)
        if videos := [document.videos for document in documents if document.videos]:
            pixels = torch.cat([each.pixels for each in videos])
            try:
                row |= self._videos.model_inputs([g for each in videos for g in each.grids], pixels)
            except ModelError as error:
                raise PackingError(f"a microbatch of {len(samples)} samples: {error}") from error
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
        labels[0] = _IGNORED
        if (labels == _IGNORED).all():
            raise ModelError(
                f"labels: none of its {len(labels)} tokens is a target ({_IGNORED} is none, and "
                "nothing predicts the first one); drop the sample"
            )
        images, videos = self._read_images(sample), self._read_videos(sample)
        self._check_tokens(input_ids, images, "image")
        self._check_tokens(input_ids, videos, "video")
        return self._placed(input_ids, labels, images, videos)

    @cached_property
    def _videos(self) -> VideoProcessor:
        return self._family.video_processor()

    def _check_tokens(self, input_ids: torch.Tensor, given: _Visuals | None, kind: str) -> None:
        """Refuse tokens of images or videos that are not those of their grids."""
        token = self._family.image_id if kind == "image" else self._own_video_id
        needed = 0 if given is None else sum(given.num_tokens)
        found = 0 if token is None else int((input_ids == token).sum())
        if found != needed:
            pixels = "pixel_values" if kind == "image" else "pixel_values_videos"
            raise ModelError(
                f"input_ids: {found} {kind} tokens (id {token}), but its {pixels} make {needed}; "
                "take both from one call of the model's processor, and do not truncate"
            )

    @property
    def _own_video_id(self) -> int | None:
        """The token of videos, or None if there is none or videos are given as images."""
        video_id = self._family.video_id
        return None if video_id == self._family.image_id else video_id

    def _placed(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        images: _Visuals | None,
        videos: _Visuals | None = None,
    ) -> _Document:
        types = (input_ids == self._family.image_id).long()
        if videos is not None:
            types[input_ids == self._own_video_id] = 2
        grids, seconds = _in_order(types, images, videos)
        return _Document(
            input_ids=input_ids,
            labels=labels,
            position_ids=self._family.position_ids(types, grids, [len(types)], seconds),
            images=images,
            videos=videos,
        )

    def _read_images(self, sample: Mapping[str, Any]) -> _Visuals | None:
        inputs = _tensors(sample, "pixel_values", "image_grid_thw", "image_sizes")
        if not inputs:
            return None
        grids, pixels = self._images.read_inputs(inputs)
        return _visuals(self._images, grids, [0.0] * len(grids), pixels, "pixel_values", "images")

    def _read_videos(self, sample: Mapping[str, Any]) -> _Visuals | None:
        inputs = _tensors(sample, "pixel_values_videos", "video_grid_thw", "second_per_grid_ts")
        if not inputs:
            return None
        return _visuals(
            self._videos, *self._videos.read_inputs(inputs), "pixel_values_videos", "videos"
        )

    def _blank_document(self) -> _Document:
        """The smallest image, as zeros, whose tokens are no targets."""
        grid = self._images.grid(*self._images.smallest_size, num_images=1)
        tokens = torch.full([self._images.num_tokens(grid)], self._family.image_id)
        pixels = torch.zeros(self._images.pixel_shape(grid))
        image = _Visuals(grids=[grid], seconds=[0.0], num_tokens=[len(tokens)], pixels=pixels)
        return self._placed(tokens, torch.full_like(tokens, _IGNORED), image)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Visuals:
    """The images of one sample, or its videos.

    Attributes:
        grids: Grid of each.
        seconds: Seconds between the frames of each video, 0 for images.
        num_tokens: Tokens of each.
        pixels: Pixels of all, joined in the first dimension.
    """

    grids: list[Grid]
    seconds: list[float]
    num_tokens: list[int]
    pixels: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Document:
    """One sample.

    Attributes:
        input_ids: Shape [tokens].
        labels: Shape [tokens].
        position_ids: Shape [axes, tokens].
        images: Its images, if there are any.
        videos: Its videos, if there are any.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    images: _Visuals | None
    videos: _Visuals | None


def _tensors(sample: Mapping[str, Any], *names: str) -> dict[str, torch.Tensor]:
    """Fields of a sample; empty if one of them is."""
    found = {name: torch.as_tensor(sample[name]) for name in names if sample.get(name) is not None}
    return found if all(map(len, found.values())) else {}


def _visuals(
    processor: ImageProcessor | VideoProcessor,
    grids: list[Grid],
    seconds: list[float],
    pixels: torch.Tensor,
    name: str,
    kind: str,
) -> _Visuals:
    """Images or videos, whose pixels must have the shape of their grids."""
    shapes = [processor.pixel_shape(grid) for grid in grids]
    needed = (sum(rows for rows, *_ in shapes), *shapes[0][1:])
    if pixels.shape != needed:
        raise ModelError(
            f"{name}: shape {tuple(pixels.shape)}, but the grids of its {len(grids)} {kind} need "
            f"{needed}; take both from one call of the model's processor"
        )
    num_tokens = [processor.num_tokens(grid) for grid in grids]
    return _Visuals(grids=grids, seconds=seconds, num_tokens=num_tokens, pixels=pixels)


def _in_order(
    types: torch.Tensor, images: _Visuals | None, videos: _Visuals | None
) -> tuple[list[Grid], list[float]]:
    """Grids and seconds of all visuals in the order of their tokens; no seconds without a video.

    Args:
        types: 0 for text, 1 for image tokens, 2 for video tokens, as many as the visuals have.
        images: Images of the sample.
        videos: Its videos.
    """
    if images is None or videos is None:
        only = images or videos
        return ([], []) if only is None else (only.grids, only.seconds if videos else [])
    left = {
        kind: iter(zip(each.grids, each.seconds, each.num_tokens, strict=True))
        for kind, each in ((1, images), (2, videos))
    }
    kinds = types[types > 0].tolist()
    grids, seconds, at = [], [], 0
    while at < len(kinds):
        grid, second, number = next(left[kinds[at]])
        grids.append(grid)
        seconds.append(second)
        at += number
    return grids, seconds


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
