"""Header and plan of a video, shared by its reader, its family and its text."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.cost.flops import Grid

FAMILIES_WITH_VIDEO = (
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen2_5_vl",
    "internvl",
    "llava_onevision",
)
"""`model_type` of the families that take videos."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoHead:
    """Facts from which a video is planned."""

    num_frames: int
    """Frames that are shown."""
    fps: float
    height: int
    """Height and width of the frames upright."""
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoLimits:
    """Which frames are taken of a video, and their size; None is what the processor says."""

    fps: float | None = None
    """Frames per second."""
    max_frames: int | None = None
    max_pixels: int | None = None
    """Pixels above which frames are reduced: of each, or of all, as the processor counts."""


NO_VIDEO_LIMITS = VideoLimits()


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoPlan:
    """Plan of a video, made from its header alone."""

    frames: tuple[int, ...]
    """Numbers of the frames that are taken, ascending."""
    grid: Grid
    text: str
    """Text of the video, with one placeholder token for each block."""
    seconds: float
    """Seconds between the frames of the grid."""
