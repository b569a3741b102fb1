"""Images and videos of samples: grids from file headers, and 8-bit values from the files.

A *visual* is an image or a video.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowtrain.cache import Reader
from flowtrain.cost.flops import Grid
from flowtrain.data.content import content_of
from flowtrain.data.conversation import Conversation
from flowtrain.data.errors import DataError
from flowtrain.data.files import IMAGE, VisualFile
from flowtrain.data.images import read_upright, upright_size
from flowtrain.data.pixel_maker import SamplePixels, StoredRows
from flowtrain.models.errors import ModelError

if TYPE_CHECKING:
    from flowtrain.models.images import ImageProcessor
    from flowtrain.models.video_processor import VideoProcessor
    from flowtrain.models.videos import VideoPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedVisual:
    """Plan of an image or a video, made from the header of its file."""

    grid: Grid
    num_tokens: int
    seconds: float = 0.0
    """Seconds between the frames of the grid of a video, or 0 for an image."""
    text: str | None = None
    """Text of a video, with a placeholder for each block; None for an image."""


class VisualReader:
    """Reads image and video files for a model.

    Args:
        processor: The model's image processor.
        make_videos: Makes the model's video processor, with the first video.
        limits: Text of the limits of both, which are part of the key of features.
        skip_bad: Whether a visual that cannot be used becomes zeros; otherwise it is an error.
    """

    def __init__(
        self,
        processor: ImageProcessor,
        make_videos: Callable[[], VideoProcessor],
        *,
        limits: str,
        skip_bad: bool,
    ) -> None:
        self._processor = processor
        self._make_videos = make_videos
        self._limits = limits
        self._stored: dict[str, Reader] = {}
        self._skip_bad = skip_bad

    def plans(
        self, conversation: Conversation, *, videos_only: bool = False
    ) -> tuple[PlannedVisual, ...]:
        """Plans of the images and videos of a sample, made from the headers of their files.

        If a header cannot be used and bad visuals are skipped, the smallest stands for it.

        Args:
            conversation: The sample.
            videos_only: Whether to leave out the images.

        Raises:
            DataError: A header cannot be used, and bad visuals are an error; or the model or this
                installation has no videos.
        """
        return tuple(
            self._plan(conversation, file)
            for file in conversation.visuals
            if not (videos_only and file.kind is IMAGE)
        )

    def num_tokens(self, conversation: Conversation, visual: int, grid: Grid) -> int:
        """Tokens of a visual with this grid."""
        if conversation.visuals[visual].kind is IMAGE:
            return self._processor.num_tokens(grid)
        return self._videos.num_tokens(grid)

    def pixels(self, conversation: Conversation, visual: int, grid: Grid) -> SamplePixels:
        """8-bit values of a visual.

        Args:
            conversation: Its sample.
            visual: Number of the visual within the sample.
            grid: Its planned grid.

        Raises:
            DataError: The file cannot be used or no longer has the planned grid, and bad visuals
                are an error.
        """
        return self._pixels(conversation, conversation.visuals[visual], grid)

    def features(
        self, conversation: Conversation, visual: int, grid: Grid, folder: str, *, find: bool
    ) -> SamplePixels | StoredRows:
        """Features of a visual from a cache, or its 8-bit values with the key of its features.

        Args:
            conversation: Its sample.
            visual: Number of the visual within the sample.
            grid: Its planned grid.
            folder: Folder of the context in the cache.
            find: Whether to look for the features.

        Raises:
            DataError: As `pixels`.
        """
        start = time.perf_counter()
        file = conversation.visuals[visual]
        try:
            content = content_of(file)
        except OSError:
            content = None  # `pixels` says what is wrong with the file.
        if content is None:
            return self.pixels(conversation, visual, grid)
        key = self._key(conversation, file, grid, content.digest)
        if find and (rows := self._reader(folder).get(key)) is not None:
            return StoredRows(rows, time.perf_counter() - start)
        made = self._pixels(conversation, content.file, grid)
        if made.skipped or not content.is_same():
            return made
        return replace(made, key=key, read_s=time.perf_counter() - start)

    def _reader(self, folder: str) -> Reader:
        if (reader := self._stored.get(folder)) is None:
            reader = self._stored[folder] = Reader(Path(folder))
        return reader

    def _key(
        self, conversation: Conversation, file: VisualFile, grid: Grid, digest: bytes
    ) -> bytes:
        """All that decides about the pixels of a visual, beside the processors."""
        images = conversation.num_images if file.kind is IMAGE else 0
        known = (*map(int, grid), images, self._limits, file.limits, file.fps, digest)
        return sha256(f"{file.kind.value} {known}".encode()).digest()

    def _pixels(self, conversation: Conversation, file: VisualFile, grid: Grid) -> SamplePixels:
        is_image = file.kind is IMAGE
        if not is_image:
            self._check_videos(conversation, file)
        processor = self._processor_of(conversation, file) if is_image else self._videos
        needed = processor.value_shape(grid)
        try:
            read = self._image if is_image else self._video
            values, found, size = read(conversation, file, grid)
            if found != grid:
                raise DataError(
                    f"{conversation.where}: {file.kind.value} {file.name}: its grid is {found}, "
                    f"but {grid} was planned: the file changed during the run; continue with "
                    "--resume, or set data.bad_image=skip"
                )
        except DataError:
            if not self._skip_bad:
                raise
            return SamplePixels(values=None, kind=file.kind)
        if values.shape != needed:
            raise DataError(
                f"{conversation.where}: {file.kind.value} {file.name}: the model's "
                f"{file.kind.value} processor made {values.shape} where its size of "
                f"{size[0]} x {size[1]} pixels gives {needed}; use the processor that belongs to "
                "the model"
            )
        return SamplePixels(values=values, kind=file.kind)

    @cached_property
    def _videos(self) -> VideoProcessor:
        return self._make_videos()

    def _check_videos(self, conversation: Conversation, file: VisualFile) -> None:
        """Refuse a video that no file could make usable."""
        from flowtrain.data.videos import require_av

        if not isinstance(file.source, tuple):
            require_av(conversation.where)
        try:
            _ = self._videos
        except (ModelError, OSError, ValueError) as error:
            raise DataError(f"{conversation.where}: a video: {error}") from error

    def _processor_of(self, conversation: Conversation, file: VisualFile) -> ImageProcessor:
        """The processor of an image, with the limits that its record gives."""
        if not file.limits:
            return self._processor
        try:
            return self._processor.limited(file.limits)
        except ModelError as error:
            raise DataError(f"{conversation.where}: image {file.name}: {error}") from error

    def _plan(self, conversation: Conversation, file: VisualFile) -> PlannedVisual:
        if file.kind is IMAGE:
            grid = self._image_grid(conversation, file)
            return PlannedVisual(grid=grid, num_tokens=self._processor.num_tokens(grid))
        self._check_videos(conversation, file)
        plan = self._video_plan(conversation.where, file)
        return PlannedVisual(
            grid=plan.grid,
            num_tokens=self._videos.num_tokens(plan.grid),
            seconds=plan.seconds,
            text=plan.text,
        )

    def _image_grid(self, conversation: Conversation, file: VisualFile) -> Grid:
        number, where = conversation.num_images, conversation.where
        processor = self._processor_of(conversation, file)
        try:
            height, width = upright_size(file, where)
            try:
                return processor.grid(height, width, num_images=number)
            except ValueError as error:
                raise file.unusable(where, error) from error
        except DataError:
            if not self._skip_bad:
                raise
        return processor.grid(*processor.smallest_size, num_images=number)

    def _video_plan(self, where: str, file: VisualFile) -> VideoPlan:
        from flowtrain.data.videos import video_head

        try:
            head = video_head(file, where, list_fps=self._videos.list_fps)
            try:
                return self._videos.plan(head)
            except ValueError as error:
                raise file.unusable(where, error) from error
        except DataError:
            if not self._skip_bad:
                raise
        return self._videos.plan(self._videos.smallest)

    def _image(
        self, conversation: Conversation, file: VisualFile, grid: Grid
    ) -> tuple[NDArray[np.uint8], Grid, tuple[int, int]]:
        """Values of an image, its grid, and its height and width."""
        number = conversation.num_images
        processor = self._processor_of(conversation, file)
        upright = read_upright(file, conversation.where)
        size = upright.height, upright.width
        try:
            found = processor.grid(*size, num_images=number)
            return processor.resize(upright, num_images=number), found, size
        except ValueError as error:
            raise file.unusable(conversation.where, error) from error

    def _video(
        self, conversation: Conversation, file: VisualFile, grid: Grid
    ) -> tuple[NDArray[np.uint8], Grid, tuple[int, int]]:
        """Values of a video if it has the planned grid, its grid, and its height and width."""
        from flowtrain.data.videos import read_frames, video_head

        where = conversation.where
        head = video_head(file, where, list_fps=self._videos.list_fps)
        size = head.height, head.width
        try:
            plan = self._videos.plan(head)
            if plan.grid != grid:
                return np.empty(0, dtype=np.uint8), plan.grid, size
            frames = read_frames(file, plan.frames, head, where)
            return self._videos.resize(frames, grid), grid, size
        except DataError:
            raise
        except ValueError as error:
            raise file.unusable(where, error) from error
