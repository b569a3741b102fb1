"""Video files that cannot be used, and how a video is planned and read."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import copied, write_clip
from numpy.typing import NDArray
from PIL import Image
from support import float_pixels

from flowtrain.config import from_dict
from flowtrain.config.data import DataConfig
from flowtrain.data import DataError, videos
from flowtrain.data.check import check_file
from flowtrain.data.files import VIDEO, VisualFile, visual_file
from flowtrain.data.samples import SampleReader
from flowtrain.data.text import expand
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, TINY, write_tiny_model
from flowtrain.models.videos import FAMILIES_WITH_VIDEO, VideoHead

TURNS = [{"role": "user", "content": "<video>?"}, {"role": "assistant", "content": "yes"}]
TORCHVISION = Path(sys.prefix) / "reference"
"""Where `make setup` keeps a torchvision that does not fit the installed torch."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    write_tiny_model(folder, SMALLEST)
    return folder


def head(path: Path) -> VideoHead:
    return videos.video_head(VisualFile(VIDEO, path, path.name), "a line", list_fps=2.0)


def stack(path: Path, frames: Sequence[int]) -> NDArray[np.uint8]:
    """Frames of a video, shape [frames, height, width, 3]."""
    read = videos.read_frames(VisualFile(VIDEO, path, path.name), frames, head(path), "a line")
    return np.stack(list(read))


def reader(model: Path, folder: Path, name: str | list[str], **data: Any) -> SampleReader:
    path = folder / "data.jsonl"
    path.unlink(missing_ok=True)
    path.write_text(json.dumps({"messages": TURNS, "videos": [name]}) + "\n")
    return SampleReader(model, DataConfig(path=path, **data), 4096)


def test_a_video_that_cannot_be_used_is_named_with_the_cause(model: Path, tmp_path: Path) -> None:
    tmp_path.joinpath("text.mp4").write_text("no video")
    tmp_path.joinpath("folder.mp4").mkdir()
    write_clip(tmp_path / "one.mp4", frames=1)
    for name, cause in (
        ("gone.mp4", "there is no such file"),
        ("text.mp4", "Invalid data found"),
        ("folder.mp4", "not a regular file"),
        ("one.mp4", "t:1 must be larger than temporal_factor:2"),
    ):
        with pytest.raises(DataError, match=rf"data.jsonl:1: video .*{name}: .*{cause}.*; repair"):
            reader(model, tmp_path, name).meta(0)


@pytest.mark.parametrize("as_file", [True, False])
def test_a_playlist_opens_no_other_file_and_no_address(
    as_file: bool, model: Path, tmp_path: Path
) -> None:
    write_clip(tmp_path / "a.mp4")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a.mp4"
        asked: list[Any] = []

        def serve() -> None:
            with suppress(OSError):  # The server is closed.
                while True:
                    asked.append(server.accept()[0])
                    asked[-1].close()

        threading.Thread(target=serve, daemon=True).start()
        hls = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1.0,\n{}\n#EXT-X-ENDLIST\n"
        sdp = "v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 0 RTP/AVP 96\n"
        for name, text, cause in (
            ("concat.mp4", "ffconcat version 1.0\nfile a.mp4\n", "takes it for a playlist"),
            ("address.m3u8", hls.format(address), "takes it for a playlist"),
            ("file.m3u8", hls.format(tmp_path / "a.mp4"), "takes it for a playlist"),
            ("session.mp4", sdp, "takes it for a playlist"),
            # FFmpeg itself refuses a playlist under another name.
            ("address.mp4", hls.format(address), "Invalid data found"),
        ):
            if as_file:
                tmp_path.joinpath(name).write_text(text)
                source: str | bytes = str(tmp_path / name)
            elif name.endswith(".m3u8"):
                continue
            else:
                source = text.encode()
            file = visual_file(source, VIDEO, "1", None, "line 1")
            with pytest.raises(DataError, match=rf"line 1: video .*{cause}.*; repair"):
                videos.video_head(file, "line 1", list_fps=2.0)
    assert asked == []


def test_a_video_with_fewer_frames_than_its_header_says_is_refused(
    model: Path, tmp_path: Path
) -> None:
    path = write_clip(tmp_path / "a.avi", frames=40, height=64, width=64)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    read = reader(model, tmp_path, "a.avi")
    meta = read.meta(0)
    with pytest.raises(DataError, match=r"a.avi: its header says 40 frames, but only \d+ can be"):
        read.pixels(0, 0, meta.grids[0])
    read = reader(model, tmp_path, "a.avi", bad_image="skip")
    pixels = read.pixels(0, 0, meta.grids[0])
    assert pixels.skipped
    assert not float_pixels(model, (pixels, meta.grids[0])).any()


def test_a_video_with_a_damaged_frame_is_refused(model: Path, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", frames=40, height=64, width=64)
    content = path.read_bytes()
    header_at = content.index(b"moov") - 4  # Behind the frames.
    path.write_bytes(content[: header_at // 2].ljust(header_at, b"\0") + content[header_at:])
    read = reader(model, tmp_path, "a.mp4")
    with pytest.raises(DataError, match="a.mp4: .*Invalid data found"):
        read.pixels(0, 0, read.meta(0).grids[0])


@pytest.mark.parametrize("degrees", [0, 90, 180, -90])
@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True)])
def test_a_video_with_a_display_matrix_is_read_upright(
    model: Path, tmp_path: Path, degrees: int, flips: tuple[bool, bool]
) -> None:
    as_stored = write_clip(tmp_path / "as_stored.mp4", frames=4)
    write_clip(tmp_path / "a.mp4", frames=4, turned=(degrees, *flips))
    every = range(4)
    stored = stack(as_stored, every)
    upright = np.rot90(stored, degrees // 90, axes=(1, 2))
    upright = upright[:, :: -1 if flips[1] else 1, :: -1 if flips[0] else 1]
    assert not np.array_equal(upright, stored) or (degrees, *flips) == (0, False, False)
    np.testing.assert_array_equal(stack(tmp_path / "a.mp4", every), upright)
    read = reader(model, tmp_path, "a.mp4")
    [grid] = read.meta(0).grids
    assert grid == ((2, 4, 6) if degrees % 180 == 0 else (2, 6, 4))
    values = read.pixels(0, 0, grid).values
    np.testing.assert_array_equal(
        values, family_for(model).video_processor().resize(np.ascontiguousarray(upright), grid)
    )


def test_frames_that_were_read_leave_no_threads(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", frames=4)
    stack(path, range(4))
    before = len(os.listdir("/proc/self/task"))
    gc.disable()  # Frames are freed by the collector, in a fork maybe, whose threads are not there.
    try:
        stack(path, range(4))
        assert len(os.listdir("/proc/self/task")) == before
    finally:
        gc.enable()


def test_a_video_that_is_turned_by_another_angle_is_refused(model: Path, tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4", turned=(30, False, False))
    with pytest.raises(
        DataError, match=r"a.mp4: its display matrix turns it by \d+ degrees; encode it"
    ):
        reader(model, tmp_path, "a.mp4").meta(0)


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_frames_that_an_edit_list_hides_do_not_count(tmp_path: Path, codec: str) -> None:
    whole = write_clip(tmp_path / "whole.mp4", frames=30, codec=codec)
    cut = copied(tmp_path / "cut.mp4", whole, cut=10)
    assert head(cut) == replace(head(whole), num_frames=20)
    np.testing.assert_array_equal(stack(cut, range(20)), stack(whole, range(10, 30)))


@pytest.mark.parametrize(
    ("name", "codec", "muxer"),
    [
        ("a.mkv", "mpeg4", {}),
        ("a.webm", "libvpx", {}),
        ("a.webm", "libvpx-vp9", {}),
        ("a.ts", "mpeg4", {}),
        ("a.flv", "flv1", {}),
        ("a.mp4", "libx264", {"movflags": "frag_keyframe+empty_moov"}),
        ("a.mp4", "libx264", {"movflags": "frag_every_frame"}),
        ("a.mp4", "libx264", {"movflags": "dash"}),
    ],
)
def test_frames_are_counted_where_the_header_does_not_say_their_number(
    tmp_path: Path, name: str, codec: str, muxer: dict[str, str]
) -> None:
    path = write_clip(tmp_path / name, frames=23, height=32, width=48, codec=codec, muxer=muxer)
    found = head(path)
    assert (found.num_frames, found.height, found.width) == (23, 32, 48)
    assert found.fps == pytest.approx(10, rel=0.01)
    assert len(stack(path, range(23))) == 23


def test_the_frames_of_a_file_are_counted_again_only_after_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    read = videos._read_packets

    def count(*arguments: Any) -> Any:
        found = read(*arguments)
        counted.append(found[0])
        return found

    monkeypatch.setattr(videos, "_read_packets", count)
    path = write_clip(tmp_path / "a.mkv")
    assert [head(path).num_frames for _ in range(3)] == [12] * 3
    write_clip(path, frames=9)
    assert [head(path).num_frames for _ in range(3)] == [9] * 3
    path.unlink()
    with pytest.raises(DataError, match="there is no such file"):
        head(path)
    assert counted == [12, 9]


def test_frames_of_vp8_that_are_not_shown_do_not_count(tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "a.webm", frames=20, height=32, width=48, codec="libvpx")

    def hide(number: int, content: bytes) -> bytes:
        return bytes([content[0] & ~0x10]) + content[1:] if number == 7 else content

    hidden = copied(tmp_path / "hidden.webm", whole, change=hide)
    assert head(hidden).num_frames == len(stack(hidden, range(19))) == 19


def test_an_animation_is_a_video(model: Path, tmp_path: Path) -> None:
    images = [Image.new("RGB", (24, 16), (40 * n, 0, 0)) for n in range(6)]
    images[0].save(tmp_path / "a.gif", save_all=True, append_images=images[1:], duration=200)
    found = head(tmp_path / "a.gif")
    assert (found.num_frames, found.fps) == (6, 5.0)
    reds = stack(tmp_path / "a.gif", range(6))[:, 0, 0, 0]
    assert reds.tolist() == [0, 40, 80, 120, 160, 200]
    assert reader(model, tmp_path, "a.gif").meta(0).grids[0][1:] == (4, 6)


@pytest.mark.parametrize("family", FAMILIES_WITH_VIDEO)
def test_a_list_of_images_is_a_video(family: str, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model", SMALLEST, family=family)
    processor_fps = 2
    for fps, options in ((processor_fps, {}), (10, {"sample_fps": 10}), (5, {"fps": 5.0})):
        clip = write_clip(tmp_path / f"{fps}.mp4", frames=12, fps=fps)
        names = []
        for number, frame in enumerate(stack(clip, range(12))):
            names.append(f"{fps}.{number}.png")
            Image.fromarray(frame).save(tmp_path / names[-1])
        part = {"type": "video", "video": names, **options}
        turns = [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}, TURNS[1]]
        records = [
            {"messages": TURNS, "videos": [clip.name]},
            {"messages": turns},
            *([] if options else [{"messages": TURNS, "videos": [names]}]),
        ]
        path = tmp_path / f"{fps}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        read = SampleReader(tmp_path / "model", DataConfig(path=path), 4096)
        meta, text = read.meta_and_text(0)
        truth = read.pixels(0, 0, meta.grids[0]).values
        for line in range(1, len(records)):
            listed, its_text = read.meta_and_text(line)
            assert (listed.grids, listed.seconds) == (meta.grids, meta.seconds)
            assert its_text.tobytes() == text.tobytes()
            np.testing.assert_array_equal(read.pixels(line, 0, meta.grids[0]).values, truth)


def test_a_list_of_images_that_are_no_video_is_refused(model: Path, tmp_path: Path) -> None:
    for name, size in (("a.png", (24, 16)), ("b.png", (24, 16)), ("c.png", (16, 24))):
        Image.new("RGB", size).save(tmp_path / name)
    for names, cause in (
        (
            ["a.png", "b.png", "c.png"],
            "image 3 of its 3 has 24 x 16 pixels, and the first one 16 x",
        ),
        (["a.png", "gone.png"], "gone.png: there is no such file"),
    ):
        with pytest.raises(DataError, match=rf"data.jsonl:1: .*{cause}"):
            reader(model, tmp_path, names).meta(0)
        assert reader(model, tmp_path, names, bad_image="skip").meta(0).grids == ((1, 2, 2),)


def test_a_skipped_header_takes_the_smallest_video(model: Path, tmp_path: Path) -> None:
    read = reader(model, tmp_path, "gone.mp4", bad_image="skip")
    meta, compact = read.meta_and_text(0)
    assert meta.grids == ((1, 2, 2),) and meta.image_lengths == (1,)
    assert (expand(compact).mm_token_type_ids == 2).sum() == 1
    assert read.pixels(0, 0, meta.grids[0]).skipped


def test_a_video_that_changed_keeps_its_planned_grid_or_is_refused(
    model: Path, tmp_path: Path
) -> None:
    write_clip(tmp_path / "a.mp4")
    read = reader(model, tmp_path, "a.mp4")
    grid = read.meta(0).grids[0]
    write_clip(tmp_path / "a.mp4", height=32)
    with pytest.raises(DataError, match=r"its grid is \(2, 8, 6\), but \(2, 4, 6\) was planned"):
        read.pixels(0, 0, grid)


@pytest.mark.parametrize(
    ("family", "frames"),
    [
        # 4 s of 2 frames a second, of 5 (its own maximum is 16), and 7, the last of them twice.
        ("qwen3_vl", [8, 16, 8]),
        # All 40 frames, 5 a second, and whole patches up to 7.
        ("qwen2_5_vl", [40, 20, 6]),
        # The number in its own file, 5 a second, and the first.
        ("internvl", [4, 20, 4]),
        ("llava_onevision", [4, 20, 4]),
    ],
)
def test_frames_are_chosen_by_the_configuration(
    family: str, frames: list[int], tmp_path: Path
) -> None:
    write_tiny_model(tmp_path / "model", SMALLEST, family=family)
    write_clip(tmp_path / "a.mp4", frames=40, fps=10)
    options: list[dict[str, Any]] = [{}, {"video_fps": 5}, {"video_max_frames": 7}]
    patches = 2 if family.startswith("qwen") else 1
    read = [reader(tmp_path / "model", tmp_path, "a.mp4", **given) for given in options]
    assert [patches * each.meta(0).grids[0][0] for each in read] == frames


@pytest.mark.parametrize(("family", "frames"), [("qwen3_vl", 4), ("qwen2_5_vl", 1)])
def test_the_pixels_of_frames_are_limited_by_the_configuration(
    family: str, frames: int, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path / "model", SMALLEST, family=family)
    write_clip(tmp_path / "a.mp4", frames=4, height=64, width=96)
    grid, limited = (
        reader(tmp_path / "model", tmp_path, "a.mp4", video_max_pixels=pixels).meta(0).grids[0]
        for pixels in (None, frames * 2048)
    )
    assert grid == (2, 16, 24)
    assert limited == (2, 8, 12)  # 32 x 48 pixels; 40 x 56 would be more than 2048.
    read = reader(tmp_path / "model", tmp_path, "a.mp4", video_max_pixels=8)
    with pytest.raises(DataError, match="video_max_pixels=8 is less than the lower limit .* 64"):
        read.meta(0)


@pytest.mark.parametrize("family", ["internvl", "llava_onevision"])
def test_a_limit_of_pixels_is_refused_where_frames_have_one_size(
    family: str, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path / "model", SMALLEST, family=family)
    read = reader(tmp_path / "model", tmp_path, "a.mp4", video_max_pixels=4096)
    with pytest.raises(DataError, match="video_max_pixels=4096: .* one size .*'height': 16"):
        read.meta(0)


def test_a_maximum_below_the_frames_of_a_patch_is_refused(model: Path, tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4")
    read = reader(model, tmp_path, "a.mp4", video_max_frames=1)
    with pytest.raises(DataError, match="data.video_max_frames=1: a patch .* spans 2 frames"):
        read.meta(0)


def test_a_truncated_sample_keeps_whole_videos_alone(model: Path, tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mp4"):
        write_clip(tmp_path / name)
    turns = [
        {"role": role, "content": text}
        for role, text in (("user", "<video>?"), ("assistant", "yes"), ("user", "<video>!"))
    ]
    record = {"messages": [*turns, TURNS[1]], "videos": ["a.mp4", "b.mp4"]}
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(record) + "\n")
    whole, text = SampleReader(model, DataConfig(path=path), 4096).meta_and_text(0)
    assert len(whole.grids) == len(whole.seconds) == 2
    # One token less than the last block of the second video needs.
    end = int(text["count"].cumsum()[np.flatnonzero(text["kind"])[-1]])
    read = SampleReader(model, DataConfig(path=path, oversize="truncate"), end - 1)
    cut, kept = read.meta_and_text(0)
    assert (cut.grids, cut.seconds) == (whole.grids[:1], whole.seconds[:1])
    # The text ends in front of the time of the second video, and of the token that starts it.
    assert kept.tobytes() == text[: len(kept)].tobytes()
    assert (text[len(kept)]["id"], (kept["kind"] == 2).sum()) == (read._chat.image_start_id, 2)
    # The prompt of the last answer has both.
    before, prompt = SampleReader(model, DataConfig(path=path), 4096).prompt(0)
    assert (before.grids, before.seconds) == (whole.grids, whole.seconds)
    assert before.num_tokens == whole.num_tokens - len("yes\n") - 1 == prompt["count"].sum()


def test_videos_are_counted_apart_from_images(model: Path, tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4")
    tmp_path.joinpath("data.jsonl").write_text(
        json.dumps({"messages": TURNS, "video": "a.mp4"})
        + "\n"
        + json.dumps({"messages": TURNS, "video": "gone.mp4"})
    )
    tree = {
        "run": tmp_path / "run",
        "model": {"config": model},
        "data": {"path": tmp_path / "data.jsonl", "bad_image": "skip"},
        "train": {"steps": 1, "global_batch": 1, "microbatch_tokens": 4096},
        "flow": {"mode": "strict"},
    }
    found = check_file(from_dict(tree, source="test"), workers=1, pixels=True)
    assert (found.images, found.videos, found.image_tokens) == (0, 1, 12)
    assert [bad.line for bad in found.bad] == [2]


@pytest.mark.parametrize("family", sorted(set(TINY) - set(FAMILIES_WITH_VIDEO)))
def test_a_family_without_videos_names_those_that_have_them(family: str, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model", SMALLEST, family=family)
    write_clip(tmp_path / "a.mp4")
    read = reader(tmp_path / "model", tmp_path, "a.mp4", bad_image="skip")
    with pytest.raises(DataError, match=f"data.jsonl:1: .*{family} has no videos; .*qwen3_vl"):
        read.meta(0)


def test_a_missing_decoder_is_named_with_the_command_that_installs_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(videos, "find_spec", lambda name: None)
    read = reader(model, tmp_path, "a.mp4", bad_image="skip")
    with pytest.raises(
        DataError, match=r"PyAV, which is not installed; pip install -e '.\[video\]'"
    ):
        read.meta(0)


_REFERENCE = """
import sys
from pathlib import Path

import torch

if sys.argv[1] != "fits":
    # Its compiled operators need another torch. Images and videos do not call them.
    sys.path.insert(0, sys.argv[1])
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import numpy as np
from transformers import AutoVideoProcessor

from flowtrain.models.registry import family_for

for folder in map(Path, sys.argv[2:]):
    processor = AutoVideoProcessor.from_pretrained(folder)
    assert "torchvision" in sys.modules
    frames = torch.from_numpy(np.load(folder / "frames.npy"))
    out = processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
    np.save(folder / "out.npy", out["pixel_values_videos"].numpy())

    # It compares its two steps with the processor of transformers, here that with torchvision.
    images = family_for(folder).image_processor()
    assert images._processor.backend == "torchvision"
"""


@pytest.fixture(scope="module")
def by_torchvision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each family: a model, frames, and the pixels that torchvision makes of them."""
    fits = importlib.util.find_spec("torchvision") is not None
    if not fits and not TORCHVISION.is_dir():
        pytest.skip(f"no torchvision, and none in {TORCHVISION}; `make setup` puts it there")
    made = tmp_path_factory.mktemp("by_torchvision")
    frames = np.random.default_rng(0).integers(0, 256, (4, 45, 70, 3), dtype=np.uint8)
    for family in FAMILIES_WITH_VIDEO:
        write_tiny_model(made / family, SMALLEST, family=family)
        np.save(made / family / "frames.npy", frames)
    arguments = ["fits" if fits else TORCHVISION, *(made / name for name in FAMILIES_WITH_VIDEO)]
    subprocess.run([sys.executable, "-c", _REFERENCE, *map(str, arguments)], check=True)
    return made


@pytest.mark.parametrize("family", FAMILIES_WITH_VIDEO)
def test_pixels_equal_those_of_torchvision(family: str, by_torchvision: Path) -> None:
    folder = by_torchvision / family
    frames = np.load(folder / "frames.npy")
    processor = family_for(folder).video_processor()
    plan = processor.plan(VideoHead(num_frames=4, fps=2.0, height=45, width=70))
    assert plan.frames == tuple(range(4))
    values = torch.from_numpy(processor.resize(frames, plan.grid))
    ours = processor.normalize(values, torch.float32).numpy()
    np.testing.assert_array_equal(ours, np.load(folder / "out.npy").reshape(ours.shape))
