"""Videos: their number, rate and size of frames without decoding them, and their frames.

Files are read by PyAV: the first video stream, in the order of display. A display matrix is applied
as players do: a telephone that is held upright stores frames that lie on their side. Frames that an
edit list hides, where a file was cut without encoding it again, do not count. A video may also be a
list of images.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowtrain.data.errors import DataError
from flowtrain.data.files import VIDEO, VisualFile
from flowtrain.data.images import read_upright, upright_size
from flowtrain.extras import install_command
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
            f"{where}: videos are decoded by PyAV, which is not installed; "
            f"{install_command('video')}"
        )


def video_head(file: VisualFile, where: str, *, list_fps: float) -> VideoHead:
    """Number, rate and upright size of the frames of a video.

    The first frame is decoded, which alone has the display matrix. A file whose header lacks the
    number of frames, as WebM and Matroska, is read as a whole, without decoding it.

    Args:
        file: The video.
        where: Data set and line or row, for error messages.
        list_fps: Frames per second of a list of images whose record does not say it.

    Raises:
        DataError: The file is missing, is no video, or has no rate; the first frame cannot be
            decoded; or the images of a list differ in size.
    """
    if isinstance(file.source, tuple):
        return _head_of_list(file, file.source, where, list_fps)
    with _usable(file, where):
        if not isinstance(file.source, Path):
            return _head(file)
        status = os.stat(file.source)
        return _head_of_path(file.source, status.st_size, status.st_mtime_ns)


def read_frames(
    file: VisualFile, frames: Sequence[int], head: VideoHead, where: str
) -> Iterator[NDArray[np.uint8]]:
    """Frames of a video in RGB and upright, each of shape [height, width, 3].

    Args:
        file: The video.
        frames: Numbers of the frames, ascending.
        head: What `video_head` found.
        where: Data set and line or row, for error messages.

    Raises:
        DataError: The file is missing or damaged, has fewer frames than were counted, or a frame
            has another size.
    """
    if isinstance(file.source, tuple):
        for number in frames:
            yield np.array(read_upright(file.source[number], where))
        return
    with _usable(file, where), _opened(file) as container:
        _stream(container)
        container.seek(0)  # As `load_video`.
        wanted = iter(frames)
        number, decoded = next(wanted), 0
        for frame in container.decode(video=0):
            if decoded == number:
                pixels = _upright(frame)
                if pixels.shape[:2] != (head.height, head.width):
                    raise OSError(
                        f"frame {number} has {pixels.shape[0]} x {pixels.shape[1]} pixels, and the "
                        f"first one {head.height} x {head.width}; encode it again with frames of "
                        "one size"
                    )
                yield pixels
                if (number := next(wanted, -1)) < 0:
                    return
            decoded += 1
        raise OSError(
            f"its header says {head.num_frames} frames, but only {decoded} can be decoded; encode "
            "it again, by `ffmpeg -i FILE NEW.mp4`"
        )


@functools.lru_cache(maxsize=1 << 14)
def _head_of_path(path: Path, size: int, changed_ns: int) -> VideoHead:
    """`_head` of a file, read again only when its size or time has changed."""
    return _head(VisualFile(VIDEO, path, path.name))


def _head(file: VisualFile) -> VideoHead:
    with _opened(file) as container:
        stream = _stream(container)
        rate = stream.average_rate or stream.guessed_rate
        number = _shown_frames(container, stream)
        if not number:
            with _opened(file) as read:
                number, seconds = _read_packets(read, _stream(read))
            rate = rate or (number / seconds if seconds else None)
        if not rate:
            raise OSError("its header does not have the frames per second")
        first = next(container.decode(video=0), None)
        if first is None:
            raise OSError("it has no frame")
        is_turned = _orientation(first)[0]
        height, width = (first.width, first.height) if is_turned else (first.height, first.width)
        return VideoHead(num_frames=number, fps=float(rate), height=height, width=width)


def _head_of_list(
    file: VisualFile, frames: Sequence[VisualFile], where: str, fps: float
) -> VideoHead:
    sizes = [upright_size(frame, where) for frame in frames]
    if (other := next((n for n, size in enumerate(sizes) if size != sizes[0]), None)) is not None:
        cause = OSError(
            f"image {other + 1} of its {len(frames)} has {_shown(sizes[other])} pixels, and the "
            f"first one {_shown(sizes[0])}; give images of one size"
        )
        raise file.unusable(where, cause)
    height, width = sizes[0]
    return VideoHead(num_frames=len(frames), fps=file.fps or fps, height=height, width=width)


def _shown(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _shown_frames(container: Any, stream: Any) -> int:
    """Frames that its header says are shown; 0 if it does not say it."""
    number: int = stream.frames
    if not number or "mp4" not in container.format.name:
        return number
    # The index of MP4 and MOV has each frame, but those that edit lists hide or leave out.
    number = sum(not entry.is_discard for entry in stream.index_entries)
    if stream.duration is None or not stream.average_rate:
        return number
    # The header of a fragmented file may have the first fragment alone.
    is_whole = number + 1 >= stream.duration * stream.time_base * stream.average_rate
    return number if is_whole else 0


def _read_packets(container: Any, stream: Any) -> tuple[int, float]:
    """Number of the frames that are shown, and their seconds; 0 where the file has no times."""
    number = 0
    first, last = math.inf, -math.inf
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard or _is_hidden(packet, stream):
            continue
        number += 1
        if packet.pts is not None:
            first, last = min(first, packet.pts), max(last, packet.pts)
    if number < 2 or not first < last:
        return number, 0.0
    return number, float((last - first) * stream.time_base) * number / (number - 1)


def _is_hidden(packet: Any, stream: Any) -> bool:
    """Whether a packet holds a frame of VP8 to which only other frames refer."""
    # RFC 6386, section 9.1: the fifth bit of a frame says whether it is shown.
    return stream.codec_context.name == "vp8" and not memoryview(packet)[0] & 0x10


def _upright(frame: Any) -> NDArray[np.uint8]:
    """A frame in RGB as its display matrix turns it, shape [height, width, 3]."""
    # Threads would be joined when the frame is freed, which hangs in a process forked meanwhile.
    pixels: NDArray[np.uint8] = frame.to_ndarray(format="rgb24", threads=1)
    is_turned, flips_rows, flips_columns = _orientation(frame)
    if is_turned:
        pixels = pixels.transpose(1, 0, 2)
    rows, columns = -1 if flips_rows else 1, -1 if flips_columns else 1
    return np.ascontiguousarray(pixels[::rows, ::columns])  # torch takes no negative strides.


def _orientation(frame: Any) -> tuple[bool, bool, bool]:
    """Whether rows and columns change places, and then whether each is in reverse.

    Raises:
        OSError: The display matrix turns the frame by no multiple of 90 degrees.
    """
    from av.sidedata.sidedata import Type

    if (side := frame.side_data.get(Type.DISPLAYMATRIX)) is None:
        return False, False, False
    # Column p and row q are shown in column a p + c q and row b p + d q.
    a, b, _, c, d = np.frombuffer(bytes(side), dtype=np.int32)[:5].tolist()
    if b == c == 0 and a and d:
        return False, d < 0, a < 0
    if a == d == 0 and b and c:
        return True, b < 0, c < 0
    raise OSError(
        f"its display matrix turns it by {frame.rotation} degrees; encode it again upright, by "
        "`ffmpeg -i FILE NEW.mp4`"
    )


@contextmanager
def _usable(file: VisualFile, where: str) -> Iterator[None]:
    """Name the video in an error of the block."""
    try:
        yield
    # FFmpeg has an error type for each cause.
    except Exception as error:
        raise file.unusable(where, error) from error


@contextmanager
def _opened(file: VisualFile) -> Iterator[Any]:
    with file.open() as opened, _demuxed(opened) as container:
        yield container


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
