"""Writes small video files whose content is known, for tests and comparisons."""

from __future__ import annotations

from collections.abc import Callable
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
    codec: str = "mpeg4",
    turned: tuple[int, bool, bool] | None = None,
    muxer: dict[str, str] | None = None,
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
        codec: Encoder.
        turned: How a display matrix turns the frames: degrees counter-clockwise, and whether it
            then mirrors columns and rows.
        muxer: Options of the container.
        options: Further attributes of the stream.
    """
    draw = np.random.default_rng(seed)
    small = draw.integers(0, 256, (frames, -(-height // 4), -(-width // 4), 3), dtype=np.uint8)
    pixels = small.repeat(4, axis=1).repeat(4, axis=2)[:, :height, :width]
    with av.open(str(path), "w", options=muxer or {}) as container:
        stream: Any = container.add_stream(codec, rate=fps)
        if turned is not None:
            stream.set_display_rotation(*turned)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for name, value in options.items():
            setattr(stream, name, value)
        for frame in pixels:
            image = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(image))
        container.mux(stream.encode())
    return path


def copied(
    path: Path, source: Path, *, cut: int = 0, change: Callable[[int, bytes], bytes] | None = None
) -> Path:
    """Write the packets of a video into another file, without encoding them again.

    Args:
        path: File to write.
        source: The video.
        cut: First frames that an edit list hides; the container must have one.
        change: Gives a packet from its number and content.
    """
    kept = {"avoid_negative_ts": "disabled"}
    with av.open(str(source)) as read, av.open(str(path), "w", options=kept) as written:
        stream = read.streams.video[0]
        assert stream.average_rate is not None and stream.time_base is not None
        shift = round(cut / (stream.average_rate * stream.time_base))
        target = written.add_stream_from_template(stream)
        for number, packet in enumerate(read.demux(stream)):
            if packet.pts is None or packet.dts is None:
                continue
            packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
            packet.stream = target
            if change is not None and (content := change(number, bytes(packet))) != bytes(packet):
                packet.update(content)
            written.mux(packet)
    return path
