from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from flowtrain.data import DataError
from flowtrain.data.conversation import Conversation, read_conversation
from flowtrain.data.fields import UnreadFieldsError
from flowtrain.data.files import IMAGE, VIDEO, VisualFile
from flowtrain.models.images import PixelLimits

ASKED = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
SHOWN = [{"role": "user", "content": "<image>Q"}, {"role": "assistant", "content": "A"}]


def read(record: dict[str, Any]) -> Conversation:
    return read_conversation(record, root=Path("/data"), where="data.jsonl:3")


def parts(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}, ASKED[1]]}


TEXT = {"type": "text", "text": "Q"}


@pytest.mark.parametrize(
    "fields",
    [
        {"image": None},
        {"image": ""},
        {"images": [None, ""]},
        {"image": None, "images": None},
        {"conversations": []},
        {"system": "", "tools": None, "videos": []},
    ],
)
def test_a_line_without_images_may_have_empty_image_fields(fields: dict[str, Any]) -> None:
    assert read({"messages": ASKED, **fields}) == read({"messages": ASKED})


@pytest.mark.parametrize(
    "record",
    [
        {"messages": SHOWN, "images": ["a b.png"]},
        {"messages": SHOWN, "images": None, "image": "a b.png"},
        {"messages": None, "conversations": SHOWN, "image": "/data/a b.png"},
        {"messages": SHOWN, "image": "file:///data/a%20b.png"},
        {"messages": SHOWN, "image": {"path": "a b.png", "bytes": None}},
        parts({"type": "image", "image": None, "url": "file:///data/a b.png"}, TEXT),
        parts({"type": "image", "path": "a b.png", "text": None}, {**TEXT, "image": None}),
        parts({"type": "image_url", "image_url": {"url": "a b.png", "detail": "auto"}}, TEXT),
        parts({"type": "image_url", "image_url": "file:///data/a b.png"}, TEXT),
        {**parts({"type": "image"}, TEXT), "images": ["a b.png"]},
        {**parts({"type": "image", "index": 0}, {**TEXT, "index": None}), "images": ["a b.png"]},
        {"messages": [{**turn, "images": [], "video": None} for turn in SHOWN], "image": "a b.png"},
    ],
)
def test_all_forms_of_an_image_are_read(record: dict[str, Any]) -> None:
    conversation = read(record)
    assert conversation.visuals == (VisualFile(IMAGE, Path("/data/a b.png"), "/data/a b.png"),)
    assert conversation.messages[0].parts == (IMAGE, "Q")


PNG = b"\x89PNG"
TEXT_OF_PNG = "iVBORw=="


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"messages": SHOWN, "image": PNG}, "1"),
        ({"messages": SHOWN, "images": [bytearray(PNG)]}, "1"),
        ({"messages": SHOWN, "images": [{"bytes": PNG, "path": None}]}, "1"),
        ({"messages": SHOWN, "images": [{"bytes": PNG, "path": "gone.png"}]}, "gone.png"),
        ({"messages": SHOWN, "image": {"bytes": TEXT_OF_PNG}}, "1"),
        ({"messages": SHOWN, "image": f"data:image/png;base64,{TEXT_OF_PNG}"}, "1"),
        (
            parts(
                {"type": "image_url", "image_url": {"url": f"data:;base64,{TEXT_OF_PNG}"}},
                TEXT,
            ),
            "1",
        ),
        (parts({"type": "image", "image": PNG}, TEXT), "1"),
    ],
)
def test_the_bytes_of_an_image_are_read(record: dict[str, Any], name: str) -> None:
    conversation = read(record)
    assert conversation.visuals == (VisualFile(IMAGE, PNG, f"{name} of the record"),)
    assert conversation.messages[0].parts == (IMAGE, "Q")


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "<video>Q<image><video>"}, ASKED[1]]}
        | {"videos": ["a.mp4", "b.mp4"], "image": "c.png"},
        parts(
            {"type": "video", "video": "a.mp4", "index": 0},
            TEXT,
            {"type": "image", "image": "c.png", "index": 0},
            {"type": "video_url", "video_url": {"url": "b.mp4"}, "index": 1},
        ),
        parts({"type": "video"}, TEXT, {"type": "image", "path": "c.png"}, {"type": "video"})
        | {"video": ["a.mp4", "b.mp4"]},
    ],
)
def test_images_and_videos_are_read_in_the_order_of_their_marks(record: dict[str, Any]) -> None:
    conversation = read(record)
    assert conversation.messages[0].parts == (VIDEO, "Q", IMAGE, VIDEO)
    files = [(visual.kind, visual.name) for visual in conversation.visuals]
    assert files == [(VIDEO, "/data/a.mp4"), (IMAGE, "/data/c.png"), (VIDEO, "/data/b.mp4")]
    assert conversation.num_images == 1


def test_a_mark_in_a_text_part_without_images_is_text() -> None:
    text = {"type": "text", "text": "What is <image> in HTML?"}
    assert read(parts(text)).messages[0].parts == (text["text"],)


def test_an_empty_field_does_not_hide_its_other_name() -> None:
    turns = [{"role": None, "from": "human", "content": "", "value": None}]
    turns += [{"role": "assistant", "from": None, "content": "", "value": "A"}]
    assert [(m.role, m.parts) for m in read({"messages": turns}).messages] == [
        ("user", ()),
        ("assistant", ("A",)),
    ]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (parts({"type": "text"}), "turn 1: a part of type text has nothing and no 'text'"),
        (
            parts({"type": "text", "value": "Hi"}),
            "turn 1: a part of type text has 'value' and no 'text'; give its words as 'text'",
        ),
        (parts({"type": "text", "text": None}), "turn 1: text=None; it must be a string"),
        (parts({"type": "audio", "audio": "a.wav"}), "turn 1: part .*text, image, .* or video_url"),
        (
            parts({"type": "image", "video": "a.mp4"}),
            "a part of type image names the video 'a.mp4', .* make it a part of type video",
        ),
        (
            parts({"type": "video", "video": "a.mp4", "fps": 1.0}),
            "fps=1.0 of video 1: not read, .*; set data.video_fps",
        ),
        (
            parts({"type": "video", "video": ["a.png", "b.png"], "fps": 0}),
            "video 1: fps=0; it must be a number above 0",
        ),
        (
            parts({"type": "video", "video": [["a.png", 7]]}),
            "image 7; it must be a path, or the bytes of a file",
        ),
        (
            {"messages": [{"role": "user", "content": "<video><image>Q"}], "image": "a.png"},
            "1 video marks in the messages and 0 videos; write <video> once for each video",
        ),
        (
            parts({"type": "image", "image": "a.png"}, {"type": "text", "text": "<image>Q"}),
            "<image> is in the text of a part",
        ),
        ({"messages": SHOWN}, "1 image marks in the messages and 0 images; write <image> once"),
        (
            {"messages": SHOWN, "image": {"bytes": "no base64!", "path": "a.png"}},
            "image a.png of the record: not base64 .*; write it as data:image/TYPE;base64,TEXT",
        ),
        (
            {"messages": SHOWN, "image": "data:image/svg+xml,<svg/>"},
            "image 1 of the record: not base64 .its head is 'data:image/svg.xml'",
        ),
        ({"messages": SHOWN, "image": {"bytes": [137, 80]}}, r"bytes=\[137, 80\]; give bytes"),
        ({"messages": SHOWN, "image": 7}, "image 7; it must be a path, or the bytes of a file"),
        (
            parts({**TEXT, "image": PNG * 1_000}),
            r"names the image b'.x89PNG.{1,60}\.\.\., which would be lost",
        ),
        ({"messages": SHOWN, "image": "file://host/a.png"}, "is no local path"),
        ({"messages": [*ASKED, {"role": "tool", "content": "1"}]}, "turn 3: role 'tool'"),
        ({"messages": [{"role": ["user"], "content": "1"}]}, r"turn 1: role \['user'\]"),
        ({"conversations": [{"from": "observation", "value": "1"}]}, "turn 1: role 'observation'"),
        (
            {"messages": [ASKED[0], {**ASKED[1], "tool_calls": [{"name": "f"}]}]},
            "'tool_calls' of turn 2: not read",
        ),
        (
            {"messages": [ASKED[0], {**ASKED[1], "weight": 0}]},
            "weight=0 of turn 2: not read, .*; drop the line, ",
        ),
        (
            {"messages": ASKED, "audios": ["a.wav"]},
            "'audios': not read, .* write it into the text of a turn, ",
        ),
        ({"messages": ASKED, "videos": ["a.mp4"]}, "0 video marks in the messages and 1 videos"),
        ({"messages": ASKED, "system": "Be brief."}, "'system': not read"),
        ({"messages": [{"role": "user", "content": "\ud83d"}, ASKED[1]]}, "turn 1: .*not Unicode"),
        ({"messages": SHOWN, "image": "\ud83d.png"}, "image '.ud83d.png': not Unicode"),
        (
            {"messages": [{**ASKED[0], "images": ["a.png"]}, ASKED[1]]},
            "'images' of turn 1: not read, .*; name images and videos beside the turns",
        ),
        (
            {"conversations": [{"from": "human", "value": "Q", "image": "a.png"}, ASKED[1]]},
            "'image' of turn 1: not read",
        ),
        (
            {"messages": [{**ASKED[0], "videos": ["a.mp4"]}, ASKED[1]]},
            "'videos' of turn 1: not read",
        ),
        (parts({**TEXT, "image": "a.png"}), "turn 1: a part of type text names the image 'a.png'"),
        (parts({"type": "image", "image": "a.png", "text": "Q"}), "turn 1: .*has the text 'Q'"),
        (parts({"type": "image", "image": ["a.png", "b.png"]}), "turn 1: a part names 2 images"),
        (
            {
                **parts({"type": "image", "index": 1}, {"type": "image", "index": 0}),
                "images": ["a", "b"],
            },
            "turn 1: a part has index 1, but is image 0",
        ),
        ({"messages": ASKED, "conversations": SHOWN}, "both 'messages' and 'conversations' are"),
        ({"messages": [{**ASKED[0], "from": "gpt"}, ASKED[1]]}, "turn 1: both 'role' and 'from'"),
        ({"messages": [ASKED[0], {**ASKED[1], "value": "B"}]}, "turn 2: both 'content' and 'val"),
        (
            {"messages": SHOWN, "images": [{"path": "a.png", "url": "b.png"}]},
            "an image: both 'path' and 'url' are given",
        ),
    ],
)
def test_fields_that_would_be_lost_or_misread_are_refused(
    record: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=rf"^data\.jsonl:3: .*{message}"):
        read(record)


ONE_IMAGE = {**parts({"type": "image"}, TEXT), "images": ["a.png"]}
UNREAD: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": ASKED, "objects": {"bbox": [[1, 2, 3, 4]]}}, "objects", "'objects'"),
    ({"messages": ASKED, "system_prompt": "Be brief."}, "system_prompt", "'system_prompt'"),
    ({"messages": ASKED, "rejected_response": "B"}, "rejected_response", "'rejected_response'"),
    ({"messages": ASKED, "audio": {"path": None, "array": [0.5]}}, "audio", "'audio'"),
    ({"messages": ASKED, "label": False}, "label", "label=False"),
    ({"messages": [ASKED[0], {**ASKED[1], "loss_scale": 0.0}]}, "loss_scale", "loss_scale=0.0 of"),
    ({"messages": [ASKED[0], {**ASKED[1], "loss_weight": 2}]}, "loss_weight", "loss_weight=2 of"),
    ({"messages": [ASKED[0], {**ASKED[1], "train": False}]}, "train", "train=False of turn 2"),
    ({"messages": [{**ASKED[0], "train": True}, ASKED[1]]}, "train", "train=True of turn 1"),
    ({"messages": [{**ASKED[0], "name": "Ann"}, ASKED[1]]}, "name", "'name' of turn 1"),
    (
        parts({**TEXT, "cache_control": {"type": "x"}}),
        "cache_control",
        "'cache_control' of a text of",
    ),
    (parts({**TEXT, "index": 1}), "index", "index=1 of a text of turn 1"),
    (
        parts({"type": "image", "image": "a.png", "min_tokens": 4}),
        "min_tokens",
        "min_tokens=4 of an image of turn 1",
    ),
    (
        parts({"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}),
        "detail",
        "'detail' of image 1",
    ),
    ({"messages": SHOWN, "images": [{"path": "a.png", "rotate": 90}]}, "rotate", "rotate=90 of i"),
    (parts({"type": "video", "video": "a.mp4", "max_pixels": 9}), "max_pixels", "max_pixels=9 of"),
    (
        {"messages": [{"role": "user", "content": "<video>"}, ASKED[1]]}
        | {"videos": [{"path": "a.mp4", "video_start": 1.5}]},
        "video_start",
        "video_start=1.5 of video 1: .*; set data.video_fps",
    ),
]


@pytest.mark.parametrize(("record", "name", "message"), UNREAD)
def test_a_field_that_nothing_uses_is_refused_by_its_name_or_ignored(
    record: dict[str, Any], name: str, message: str
) -> None:
    with pytest.raises(
        UnreadFieldsError, match=rf"^data\.jsonl:3: {message}.*\[{name}\]$"
    ) as raised:
        read(record)
    assert raised.value.names == (name,)
    assert read_conversation(record, root=Path(), where="", ignore=[name]).messages


def test_all_fields_that_nothing_uses_are_named_together() -> None:
    record = {"messages": [{**ASKED[0], "name": "Ann"}, {**ASKED[1], "weight": 0}], "height": 7}
    with pytest.raises(UnreadFieldsError) as raised:
        read(record)
    assert str(raised.value).startswith("data.jsonl:3: height=7, 'name' of turn 1, weight=0 of ")
    assert str(raised.value).endswith("data.ignore=[height,name,weight]")
    record = {"messages": ASKED, "height": None, "tags": [None, {"x": ""}], "id": 7, "source": "w"}
    assert read(record) == read({"messages": ASKED})
    weighted = [{**ASKED[0], "weight": 0, "train": False}, {**ASKED[1], "loss": True, "weight": 1}]
    assert read({"messages": weighted}) == read({"messages": ASKED})


@pytest.mark.parametrize(
    "record",
    [
        parts({"type": "image", "image": "a.png", "min_pixels": "64", "max_pixels": 4096.0}, TEXT),
        {**parts({"type": "image", "min_pixels": 64, "max_pixels": 4096}, TEXT), "image": "a.png"},
        {"messages": SHOWN, "images": [{"path": "a.png", "min_pixels": 64, "max_pixels": 4096}]},
        parts(
            {"type": "image_url", "image_url": {"url": "a.png", "min_pixels": 64}}
            | {"max_pixels": 4096},
            TEXT,
        ),
    ],
)
def test_limits_of_one_image_are_read_wherever_they_stand(record: dict[str, Any]) -> None:
    limits = PixelLimits(min_pixels=64, max_pixels=4096)
    assert read(record).visuals[0].limits == limits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_pixels": "640x480"}, "image 1: max_pixels='640x480'; it must be a whole number"),
        ({"max_pixels": True}, "image 1: max_pixels=True; it must be a whole number above 0"),
        ({"max_pixels": 10**400}, "image 1: max_pixels=1000"),
        ({"max_pixels": 64.5}, "image 1: max_pixels=64.5"),
        ({"max_pixels": 0}, "image 1: max_pixels=0; it must be a whole number above 0"),
        ({"resized_height": 28}, "resized_height and resized_width belong together"),
        (
            {"max_pixels": 4096, "image": {"path": "a", "max_pixels": 1}},
            "max_pixels is 4096 in its",
        ),
    ],
)
def test_limits_of_one_image_that_mean_nothing_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(parts({"type": "image", "image": "a.png", **options}, TEXT))


def test_base64_without_a_head_or_with_line_breaks_is_read() -> None:
    content = b"\xff\xd8\xff" + bytes(range(256)) * 8
    text = base64.b64encode(content).decode()
    lines = base64.encodebytes(content).decode()
    assert "/" in text and "\n" in lines and text.endswith("=")
    for value in (
        text,
        lines,
        lines.replace("\n", "\r\n"),
        text.rstrip("="),
        f"data:image/jpeg;base64,{lines}",
        f"data:image/jpeg;base64,{quote(text)}",
        {"bytes": lines},
        {"url": text},
    ):
        image = read({"messages": SHOWN, "images": [value]}).visuals[0]
        assert (image.source, image.name) == (content, "1 of the record")


def test_a_path_of_the_letters_of_base64_is_a_path() -> None:
    for path in ("/9j/" + "a/" * 60, "iVBORw0KGgo" + "/a" * 90, "x" * 100, "/images/" + "a" * 92):
        assert read({"messages": SHOWN, "image": f"{path}.jpg"}).visuals[0].source == Path(
            f"/data/{path}.jpg" if path[0] != "/" else f"{path}.jpg"
        )
    no_image = "/images/" + "a" * 92
    assert read({"messages": SHOWN, "image": no_image}).visuals[0].source == Path(no_image)


LONG = "The house isn't 'red'. " * 30_000


@pytest.mark.parametrize(
    "record",
    [
        {"messages": SHOWN, "image": LONG},
        {"messages": SHOWN, "image": "A" * 722_000},
        {"messages": SHOWN, "image": f"data:image/png;base64,{LONG}"},
        {"messages": SHOWN, "image": f"data:{LONG},x"},
        {"messages": SHOWN, "image": f"https://{LONG}"},
        {"messages": SHOWN, "image": [{LONG: 1}]},
        {"messages": SHOWN, "image": "\ud83d" * 5000},
        {"messages": [{"role": LONG, "content": "Q"}]},
        {"messages": [{"role": [LONG] * 9, "content": "Q"}]},
        {"messages": [{"role": "user", "content": {"x": LONG}}]},
        {"messages": [{**ASKED[0], LONG: LONG}]},
        {"messages": [{**ASKED[0], "weight": 10**4000}]},
        parts({"type": LONG, "text": LONG}),
        parts({"type": "image", "text": LONG}),
        parts({"type": "image", "image": "a.png", "max_pixels": LONG}),
        parts({"type": "image", "image": "a.png", "index": [7] * 900}),
    ],
)
def test_an_error_repeats_no_more_than_200_characters_of_a_value(record: dict[str, Any]) -> None:
    with pytest.raises(DataError) as raised:
        read(record)
    message = str(raised.value)
    assert len(message) < 700
    assert max(map(len, message.split())) <= 200
    assert message.count("house") < 12
    assert str(pickle.loads(pickle.dumps(raised.value))) == message


def test_only_long_values_of_an_error_are_cut() -> None:
    prose = "the model's processor " * 20 + "and its users' images"
    assert str(DataError(f"a.jsonl:1: {prose}: 'red'")) == f"a.jsonl:1: {prose}: 'red'"
    said = str(DataError(f"a.jsonl:1: {LONG!r} and {'/x' * 300}; {prose}"))
    assert len(said) < 420 + len(prose) and said.endswith(f"; {prose}")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"prompt": "Q", "completion": "A"},
            "'prompt' and 'completion' are not read; write them as",
        ),
        ({"instruction": "Q", "input": "", "output": "A"}, "'instruction' and 'output' are not"),
        ({"prompt": ASKED[:1], "chosen": ASKED[1:], "rejected": ASKED[1:]}, "are a preference"),
        ({"messages": [], "chosen": "A", "rejected": "B"}, "are a preference between answers"),
        ({"text": "Q"}, "give"),
        ({"prompt": "Q", "completion": None}, "give"),
    ],
)
def test_records_of_other_kinds_are_told_what_is_supported(
    record: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=rf"^data\.jsonl:3: .*{message}.*`messages`"):
        read(record | {"images": None})
