"""Reads the common conversation formats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from flowtrain.data.errors import DataError

IMAGE = None
"""A part of a message that stands for the next image. All other parts are text."""

_MARK = "<image>"
_ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant"}
_ROLES["system"] = "system"

# Fields that are not read although they mean something.
_MEDIA = ("video", "videos", "audio", "audios")
_UNREAD = ("system", "tools", "functions", *_MEDIA)
_UNREAD_OF_TURN = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
_IMAGE_OF_PART = ("image", "image_url", "path", "url")
_WEIGHTS = ("weight", "loss", "train")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: its role, and its texts and images in order."""

    role: str
    parts: tuple[str | None, ...]

    def for_template(self) -> dict[str, Any]:
        """The turn in the form that chat templates take."""
        parts = [
            {"type": "image"} if p is IMAGE else {"type": "text", "text": p} for p in self.parts
        ]
        return {"role": self.role, "content": parts}


@dataclass(frozen=True, slots=True)
class Conversation:
    """One sample.

    Attributes:
        messages: Its turns.
        images: Its image files, in the order of their marks in the messages.
        where: Data set and line or row, for error messages.
    """

    messages: tuple[Message, ...]
    images: tuple[Path, ...]
    where: str


def read_conversation(record: dict[str, Any], *, root: Path | None, where: str) -> Conversation:
    """Read a record in one of the formats that `docs/data.md` shows.

    Args:
        record: The object of the sample.
        root: Folder that relative image paths start from; None refuses them.
        where: Data set and line or row, for error messages.

    Raises:
        DataError: The record has no known format, has a field that would be lost, or does not
            have one image for each mark.
    """
    _refuse(record, _UNREAD, where)
    turns = _either(record, "messages", "conversations", where)
    if not isinstance(turns, list) or not turns:
        raise DataError(
            f"{where}: give `messages` (or `conversations`), a list of at least one turn"
        )
    images = [*_listed(record.get("images")), *_listed(record.get("image"))]
    inline: list[Any] = []
    messages: list[Message] = []
    for number, turn in enumerate(turns, 1):
        marks = sum(message.parts.count(IMAGE) for message in messages)
        messages.append(_message(turn, inline, marks, f"{where}: turn {number}"))
    if inline and images:
        raise DataError(
            f"{where}: images are given both in `images` and in the messages; choose one"
        )
    images = images or inline
    texts = [part for message in messages for part in message.parts if part is not IMAGE]
    marks = sum(len(message.parts) for message in messages) - len(texts)
    if marks != len(images):
        raise DataError(
            f"{where}: {marks} image marks in the messages and {len(images)} images; write "
            f"{_MARK} once for each image (where {_MARK} is text, write content as a list of parts)"
        )
    # Content that is one text has been split at its marks, so this text is a part of a list.
    if images and any(_MARK in text for text in texts):
        raise DataError(
            f"{where}: {_MARK} is in the text of a part, where it does not stand for an image; "
            'remove it, or put a part {"type": "image"} in its place'
        )
    return Conversation(
        tuple(messages), tuple(_path(image, root, where) for image in images), where
    )


def _message(turn: Any, inline: list[Any], marks: int, where: str) -> Message:
    """Read a turn.

    Args:
        turn: The JSON object.
        inline: Receives the images that its parts name.
        marks: Image marks in the turns before it.
        where: File, line and turn, for error messages.
    """
    if not isinstance(turn, dict):
        raise DataError(f"{where} is {turn!r}; it must be an object with role and content")
    _refuse(turn, (*_UNREAD_OF_TURN, *_MEDIA), where)
    for field in ("image", "images"):
        if _listed(turn.get(field)):
            raise DataError(
                f"{where}: {field!r} within a turn is not read; name the images beside the turns, "
                f"and write {_MARK} at the place of each"
            )
    role = _either(turn, "role", "from", where)
    content = _either(turn, "content", "value", where)
    if not isinstance(role, str) or role not in _ROLES:
        raise DataError(
            f"{where}: role {role!r}; it must be one of {', '.join(_ROLES)}: "
            "rewrite the turn or drop the line"
        )
    for key in _WEIGHTS:
        if _ROLES[role] == "assistant" and turn.get(key, 1) not in (1, None):
            raise DataError(
                f"{where}: {key}={turn[key]!r}; every turn of the assistant is trained with the "
                "same weight: drop the field or the line"
            )
    if isinstance(content, str):
        return Message(_ROLES[role], _split(_text(content, where)))
    if not isinstance(content, list):
        raise DataError(f"{where}: content {content!r}; it must be a text or a list of parts")
    parts: list[str | None] = []
    for part in content:
        parts.append(_part(part, inline, marks + parts.count(IMAGE), where))
    return Message(_ROLES[role], tuple(parts))


def _part(part: Any, inline: list[Any], marks: int, where: str) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "image", "image_url"):
        raise DataError(f"{where}: part {part!r}; its type must be text, image or image_url")
    _refuse(part, _MEDIA, where)
    named = [value for key in _IMAGE_OF_PART for value in _listed(part.get(key))]
    if kind == "text":
        if named:
            raise DataError(
                f"{where}: a part of type text names the image {named[0]!r}, which would be lost; "
                "make it a part of type image"
            )
        return _text(part.get("text"), where)
    if part.get("text"):
        raise DataError(
            f"{where}: a part of type {kind} has the text {part['text']!r}, which would be lost; "
            "make it a part of type text"
        )
    if len(named) > 1:
        raise DataError(f"{where}: a part names {len(named)} images; write a part for each image")
    if part.get("index") not in (None, marks):
        raise DataError(
            f"{where}: a part has index {part['index']!r}, but is image {marks} of the messages "
            "(from 0); list the images in the order of their parts"
        )
    inline += named
    return IMAGE


def _text(text: Any, where: str) -> str:
    if not isinstance(text, str):
        raise DataError(f"{where}: text={text!r}; it must be a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the text is not Unicode ({error}); correct it") from error
    return text


def _split(text: str) -> tuple[str | None, ...]:
    parts: list[str | None] = []
    for number, piece in enumerate(text.split(_MARK)):
        if number:
            parts.append(IMAGE)
        if piece:
            parts.append(piece)
    return tuple(parts)


def _listed(value: Any) -> list[Any]:
    """One value or a list of them as a list, without None and empty strings."""
    values = value if isinstance(value, list) else [value]
    return [v for v in values if v is not None and v != ""]


def _path(image: Any, root: Path | None, where: str) -> Path:
    if isinstance(image, dict):
        if image.get("bytes") is not None:
            raise DataError(
                f"{where}: an image is given as bytes; store it as a file and give its path"
            )
        image = _either(image, "path", "url", f"{where}: an image") or image
    if isinstance(image, Path):
        image = str(image)
    if not isinstance(image, str):
        raise DataError(f"{where}: image {image!r}; it must be a path")
    try:
        image.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: image {image!r}: not Unicode ({error}); correct it") from error
    if image.startswith("file:///"):
        return Path(unquote(image.removeprefix("file://")))
    if "://" in image or image.startswith("data:"):
        raise DataError(
            f"{where}: image {image[:60]!r} is no local path; store the image as a file and give "
            "its path"
        )
    if root is None and not Path(image).is_absolute():
        raise DataError(
            f"{where}: image {image!r} is a relative path, and data.dataset has no folder for it "
            "to start from; set data.image_root, or give absolute paths"
        )
    return (root or Path()) / image


def _either(given: dict[str, Any], one: str, other: str, where: str) -> Any:
    """Value of the field that is given under one of two names; empty values do not count."""
    first, second = given.get(one), given.get(other)
    if first and second:
        raise DataError(
            f"{where}: both {one!r} and {other!r} are given, and one of them would be lost; "
            "remove one"
        )
    return second if second or first is None else first


def _refuse(given: dict[str, Any], fields: tuple[str, ...], where: str) -> None:
    for field in fields:
        if given.get(field):
            raise DataError(
                f"{where}: {field!r} is not read, and its content would be lost; write it into "
                "the text of a turn, or drop the line"
            )
