"""Writes small video files whose content is known, for tests and comparisons."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

NTSC = Fraction(30000, 1001)


def write_clip(
    path: Path,
    *,
    frames: int = 12,
    height: int = 16,
    width: int = 24,
    fps: Fraction | int = 10,
    seed: int = 0,
    **options: Any,
) -> Path:
    """Write a video of coloured blocks that change with every frame.

    Args:
        path: File to write; its suffix is the container.
        frames: Number of frames.
        height: Even.
        width: Even.
        fps: Frames per second.
        seed: Seed of the colours.
        options: Further attributes of the stream.
    """
    draw = np.random.default_rng(seed)
    small = draw.integers(0, 256, (frames, -(-height // 4), -(-width // 4), 3), dtype=np.uint8)
    pixels = small.repeat(4, axis=1).repeat(4, axis=2)[:, :height, :width]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for name, value in options.items():
            setattr(stream, name, value)
        for frame in pixels:
            image = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(image))
        container.mux(stream.encode())
    return path
