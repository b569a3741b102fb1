"""Video files: what their header says, and their frames, both by PyAV.

Frames are those of `transformers.video_utils.load_video(path, backend="pyav")`: the first video
stream, in the order of display, as stored. Rotation in the header is not applied there either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowtrain.data.errors import DataError
from flowtrain.data.files import VisualFile
from flowtrain.models.videos import VideoHead

FORMATS = (
    *("mov", "matroska", "avi", "mpegts", "mpeg", "flv", "asf", "ogg", "gif", "apng", "ivf"),
    *("mjpeg", "m4v", "mpegvideo", "h264", "hevc", "obu"),
)
"""FFmpeg's demuxers that may read a video.

Those of playlists (HLS, DASH, concat, SDP and others) open further files, addresses and sockets,
which the file would choose.
"""


def require_av(where: str) -> None:
    """Refuse a video where PyAV is not installed.

    Raises:
        DataError: It is not.
    """
    if find_spec("av") is None:
        raise DataError(
            f"{where}: videos are decoded by PyAV, which is not installed; pip install 'av>=14'"
        )


def video_head(file: VisualFile, where: str) -> VideoHead:
    """Number and size of the frames, and frames per second, without decoding them.

    Raises:
        DataError: The file is missing, is no video, or its header lacks one of these.
    """
    with _opened(file, where) as container:
        stream = _stream(container)
        if not stream.frames:
            raise OSError(
                "its header does not have the number of frames (as in Matroska and WebM); put it "
                "into MP4, by `ffmpeg -i FILE -c copy NEW.mp4`"
            )
        if not stream.average_rate:
            raise OSError("its header does not have the frames per second")
        return VideoHead(
            num_frames=stream.frames,
            fps=float(stream.average_rate),
            height=stream.height,
            width=stream.width,
        )


def read_frames(
    file: VisualFile, frames: Sequence[int], head: VideoHead, where: str
) -> Iterator[NDArray[np.uint8]]:
    """Frames of a video in RGB, each of shape [height, width, 3].

    Args:
        file: The video.
        frames: Numbers of the frames, ascending.
        head: What its header says.
        where: Data set and line or row, for error messages.

    Raises:
        DataError: The file is missing or damaged, has fewer frames than its header says, or a frame
            has another size.
    """
    with _opened(file, where) as container:
        _stream(container)
        container.seek(0)  # As `load_video`.
        wanted = iter(frames)
        number, decoded = next(wanted), 0
        for frame in container.decode(video=0):
            if decoded == number:
                if (frame.height, frame.width) != (head.height, head.width):
                    raise OSError(
                        f"frame {number} has {frame.height} x {frame.width} pixels, and its header "
                        f"says {head.height} x {head.width}; encode it again with frames of one "
                        "size"
                    )
                yield frame.to_ndarray(format="rgb24")
                if (number := next(wanted, -1)) < 0:
                    return
            decoded += 1
        raise OSError(
            f"its header says {head.num_frames} frames, but only {decoded} can be decoded; encode "
            "it again, by `ffmpeg -i FILE NEW.mp4`"
        )


@contextmanager
def _opened(file: VisualFile, where: str) -> Iterator[Any]:
    try:
        with file.open() as opened, _demuxed(opened) as container:
            yield container
    # FFmpeg has an error type for each cause.
    except Exception as error:
        raise file.unusable(where, error) from error


def _demuxed(opened: Any) -> Any:
    """The container in an open file."""
    import av

    try:
        return av.open(opened, options={"format_whitelist": ",".join(FORMATS)})
    except av.error.ArgumentError as error:
        raise OSError(
            "FFmpeg takes it for a playlist, or for another format than those of "
            "flowtrain.data.videos.FORMATS; put the video itself into MP4, by "
            "`ffmpeg -i FILE NEW.mp4`"
        ) from error


def _stream(container: Any) -> Any:
    """The first video stream."""
    if not container.streams.video:
        raise OSError("it has no video stream")
    return container.streams.video[0]
