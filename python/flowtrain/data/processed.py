"""Samples as the model's own processor returns them: tokens, labels, and pixels as floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flowtrain.cost.flops import Grid
from flowtrain.data.files import IMAGE, VIDEO, Visual
from flowtrain.data.text import COMPACT, CompactText
from flowtrain.models.errors import ModelError

if TYPE_CHECKING:
    from flowtrain.models.family import Family
    from flowtrain.models.images import ImageProcessor
    from flowtrain.models.video_processor import VideoProcessor

IGNORED = -100
"""Label of a token that is no target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessedVisual:
    """An image or a video, or all images of a sample whose family cannot separate them.

    Attributes:
        kind: Image or video.
        grid: Its grid.
        seconds: Seconds between the frames of a video, 0 for an image.
        num_tokens: Its tokens.
        pixels: As `normalize` of the family's processor makes them.
    """

    kind: Visual
    grid: Grid
    seconds: float
    num_tokens: int
    pixels: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class ProcessedSample:
    """One sample.

    Attributes:
        input_ids: Shape [tokens].
        labels: Not shifted; -100 where a token is no target, as the first one; shape [tokens].
        types: 0 for text, 1 for image tokens, 2 for video tokens, shape [tokens].
        position_ids: Shape [axes, tokens].
        visuals: Its images and videos, in the order of their tokens.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    types: torch.Tensor
    position_ids: torch.Tensor
    visuals: list[ProcessedVisual]

    @cached_property
    def compact(self) -> CompactText:
        """Its tokens, with one entry for all tokens of a block.

        Raises:
            ModelError: A label is another token than the one that stands there, or an image or
                video token is a target.
        """
        ids, types = self.input_ids.numpy(), self.types.numpy()
        labels = self.labels.numpy()
        is_target = labels != IGNORED
        wrong = np.flatnonzero(is_target & ((labels != ids) | (types > 0)))
        if len(wrong):
            at = int(wrong[0])
            raise ModelError(
                f"labels: {labels[at]} at token {at}, where input_ids has {ids[at]}; a label is "
                f"the token that stands there, not shifted, or {IGNORED} where it is no target, "
                "such as in images and videos"
            )
        is_first = np.ones(len(ids), dtype=bool)
        is_first[1:] = (types[1:] == 0) | (types[1:] != types[:-1])
        [first] = is_first.nonzero()
        text = np.empty(len(first), dtype=COMPACT)
        text["id"] = ids[first]
        text["count"] = np.diff(first, append=len(ids))
        text["is_target"] = is_target[first]
        text["kind"] = types[first]
        return text

    def of_kind(self, kind: Visual) -> list[ProcessedVisual]:
        """Its images, or its videos."""
        return [visual for visual in self.visuals if visual.kind is kind]


class ProcessorOutputs:
    """Reads what the processor of a model returns for one sample, with its `labels`.

    Args:
        family: The model's family.

    Attributes:
        images: The image processor of the family.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self.images: ImageProcessor = family.image_processor()

    @cached_property
    def videos(self) -> VideoProcessor:
        """The video processor of the family, made with the first video."""
        return self._family.video_processor()

    def read(self, sample: Mapping[str, Any]) -> ProcessedSample:
        """Check the tensors of a sample, and separate its images and videos.

        Args:
            sample: `input_ids` and `labels`, and for images and videos all that the processor
                returns. Other fields are not read.

        Raises:
            ModelError: A tensor is missing, has another shape than the others need, or is padded;
                or the sample has no target.
        """
        input_ids = _row(sample, "input_ids")
        labels = _row(sample, "labels").clone()
        if len(labels) != len(input_ids):
            raise ModelError(
                f"{len(labels)} labels, but {len(input_ids)} input_ids; give each token a label, "
                f"{IGNORED} where it is no target"
            )
        mask = sample.get("attention_mask")
        if mask is not None and not (seen := torch.as_tensor(mask).bool()).all():
            raise ModelError(
                f"attention_mask: {int((~seen).sum())} of its {seen.numel()} tokens are padding; "
                "give samples without padding, as the processor returns them for one sample"
            )
        labels[0] = IGNORED
        if (labels == IGNORED).all():
            raise ModelError(
                f"labels: none of its {len(labels)} tokens is a target ({IGNORED} is none, and "
                "nothing predicts the first one); drop the sample"
            )
        images, videos = self._read_images(sample), self._read_videos(sample)
        self._check_tokens(input_ids, images, IMAGE)
        self._check_tokens(input_ids, videos, VIDEO)
        return self._placed(input_ids, labels, images, videos)

    def blank(self) -> ProcessedSample:
        """The smallest image, as zeros, whose tokens are no targets."""
        grid = self.images.grid(*self.images.smallest_size, num_images=1)
        tokens = torch.full([self.images.num_tokens(grid)], self._family.image_id)
        pixels = torch.zeros(self.images.pixel_shape(grid))
        image = ProcessedVisual(
            kind=IMAGE, grid=grid, seconds=0.0, num_tokens=len(tokens), pixels=pixels
        )
        return self._placed(tokens, torch.full_like(tokens, IGNORED), [image], [])

    def _check_tokens(
        self, input_ids: torch.Tensor, given: list[ProcessedVisual], kind: Visual
    ) -> None:
        """Refuse tokens of images or videos that are not those of their grids."""
        token = self._family.image_id if kind is IMAGE else self._own_video_id
        needed = sum(visual.num_tokens for visual in given)
        found = 0 if token is None else int((input_ids == token).sum())
        if found != needed:
            pixels = "pixel_values" if kind is IMAGE else "pixel_values_videos"
            raise ModelError(
                f"input_ids: {found} {kind.value} tokens (id {token}), but its {pixels} make "
                f"{needed}; take both from one call of the model's processor, and do not truncate"
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
        images: list[ProcessedVisual],
        videos: list[ProcessedVisual],
    ) -> ProcessedSample:
        types = (input_ids == self._family.image_id).long()
        if videos:
            types[input_ids == self._own_video_id] = 2
        visuals = _in_order(types, images, videos)
        # Families take times with videos alone.
        seconds = [visual.seconds for visual in visuals] if videos else []
        grids = [visual.grid for visual in visuals]
        return ProcessedSample(
            input_ids=input_ids,
            labels=labels,
            types=types,
            position_ids=self._family.position_ids(types, grids, [len(types)], seconds),
            visuals=visuals,
        )

    def _read_images(self, sample: Mapping[str, Any]) -> list[ProcessedVisual]:
        inputs = _tensors(sample, "pixel_values", "image_grid_thw", "image_sizes")
        if not inputs:
            return []
        grids, pixels = self.images.read_inputs(inputs)
        return _visuals(self.images, IMAGE, grids, [0.0] * len(grids), pixels)

    def _read_videos(self, sample: Mapping[str, Any]) -> list[ProcessedVisual]:
        inputs = _tensors(sample, "pixel_values_videos", "video_grid_thw", "second_per_grid_ts")
        if not inputs:
            return []
        return _visuals(self.videos, VIDEO, *self.videos.read_inputs(inputs))


def _tensors(sample: Mapping[str, Any], *names: str) -> dict[str, torch.Tensor]:
    """Fields of a sample; empty if one of them is."""
    found = {name: torch.as_tensor(sample[name]) for name in names if sample.get(name) is not None}
    return found if all(map(len, found.values())) else {}


def _visuals(
    processor: ImageProcessor | VideoProcessor,
    kind: Visual,
    grids: list[Grid],
    seconds: list[float],
    pixels: torch.Tensor,
) -> list[ProcessedVisual]:
    """Images or videos, whose pixels must have the shape of their grids."""
    shapes = [processor.pixel_shape(grid) for grid in grids]
    lengths = [rows for rows, *_ in shapes]
    needed = (sum(lengths), *shapes[0][1:])
    if pixels.shape != needed:
        name = "pixel_values" if kind is IMAGE else "pixel_values_videos"
        raise ModelError(
            f"{name}: shape {tuple(pixels.shape)}, but the grids of its {len(grids)} "
            f"{kind.value}s need {needed}; take both from one call of the model's processor"
        )
    return [
        ProcessedVisual(
            kind=kind,
            grid=grid,
            seconds=second,
            num_tokens=processor.num_tokens(grid),
            pixels=own,
        )
        for grid, second, own in zip(grids, seconds, pixels.split(lengths), strict=True)
    ]


def _in_order(
    types: torch.Tensor, images: list[ProcessedVisual], videos: list[ProcessedVisual]
) -> list[ProcessedVisual]:
    """All visuals in the order of their tokens.

    Args:
        types: 0 for text, 1 for image tokens, 2 for video tokens, as many as the visuals have.
        images: Images of the sample.
        videos: Its videos.
    """
    left = {1: iter(images), 2: iter(videos)}
    kinds = types[types > 0].tolist()
    visuals: list[ProcessedVisual] = []
    at = 0
    while at < len(kinds):
        visuals.append(next(left[kinds[at]]))
        at += visuals[-1].num_tokens
    return visuals


def _row(sample: Mapping[str, Any], name: str) -> torch.Tensor:
    """A row of tokens, shape [tokens]."""
    if sample.get(name) is None:
        raise ModelError(
            f"no {name} beside {', '.join(sample)}; give the processor's tensors and `labels` "
            f"({IGNORED} where a token is no target)"
        )
    row = torch.as_tensor(sample[name])
    if row.ndim == 2 and len(row) == 1:
        row = row[0]
    if row.ndim != 1 or not len(row) or row.is_floating_point():
        raise ModelError(
            f"{name}: {row.dtype} of shape {tuple(row.shape)}; give one row of at least one token"
        )
    return row.long()
