"""The common conversation formats, read into one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowtrain.data.errors import DataError

IMAGE = None
"""A part of a message that stands for the next image; every other part is text."""

_MARK = "<image>"
_ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant"}
_ROLES["system"] = "system"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: its role, and texts and images in order."""

    role: str
    parts: tuple[str | None, ...]

    def for_template(self) -> dict[str, Any]:
        """The turn as a chat template takes it."""
        parts = [
            {"type": "image"} if p is IMAGE else {"type": "text", "text": p} for p in self.parts
        ]
        return {"role": self.role, "content": parts}


@dataclass(frozen=True, slots=True)
class Conversation:
    """One sample.

    Attributes:
        messages: Its turns.
        images: Its image files, in the order in which the messages show them.
        where: File and line, for messages to people.
    """

    messages: tuple[Message, ...]
    images: tuple[Path, ...]
    where: str


def read_conversation(record: dict[str, Any], *, root: Path, where: str) -> Conversation:
    """Read a record in either of the common formats.

    `{"messages": [{"role", "content"}], "images": [...]}`, where the content is a text with
    `<image>` marks or a list of parts, and `{"conversations": [{"from", "value"}], "image": ...}`.

    Args:
        record: The JSON object.
        root: Folder that relative image paths start from.
        where: File and line, for errors.

    Raises:
        DataError: The record is in neither format, or marks and images do not agree.
    """
    turns = record.get("messages", record.get("conversations"))
    if not isinstance(turns, list) or not turns:
        raise DataError(f"{where}: no list `messages` (or `conversations`) with at least one turn")
    listed = record.get("images", record.get("image", []))
    paths: list[Any] = list(listed) if isinstance(listed, list) else [listed]
    inline: list[Any] = []
    messages = tuple(_message(turn, inline, where) for turn in turns)
    marks = sum(part is IMAGE for message in messages for part in message.parts)
    if inline and paths:
        raise DataError(
            f"{where}: images are given both in `images` and in the messages; choose one"
        )
    paths = paths or inline
    if marks != len(paths):
        raise DataError(
            f"{where}: {marks} image marks in the messages and {len(paths)} images; "
            f"write {_MARK} once for each"
        )
    return Conversation(messages, tuple(_path(path, root, where) for path in paths), where)


def _message(turn: Any, inline: list[Any], where: str) -> Message:
    if not isinstance(turn, dict):
        raise DataError(f"{where}: a turn is {turn!r}; it must be an object with role and content")
    role = turn.get("role", turn.get("from"))
    content = turn.get("content", turn.get("value"))
    if role not in _ROLES:
        raise DataError(f"{where}: role {role!r}; it must be one of {', '.join(_ROLES)}")
    if isinstance(content, str):
        return Message(_ROLES[role], _split(content))
    if not isinstance(content, list):
        raise DataError(f"{where}: content {content!r}; it must be a text or a list of parts")
    parts: list[str | None] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            parts.append(part["text"])
        elif kind == "image":
            parts.append(IMAGE)
            path = part.get("image", part.get("path", part.get("url")))
            if path is not None:
                inline.append(path)
        else:
            raise DataError(f"{where}: part {part!r}; its type must be text or image")
    return Message(_ROLES[role], tuple(parts))


def _split(text: str) -> tuple[str | None, ...]:
    parts: list[str | None] = []
    for number, piece in enumerate(text.split(_MARK)):
        if number:
            parts.append(IMAGE)
        if piece:
            parts.append(piece)
    return tuple(parts)


def _path(path: Any, root: Path, where: str) -> Path:
    if not isinstance(path, str):
        raise DataError(f"{where}: image {path!r}; it must be a path")
    if "://" in path or path.startswith("data:"):
        raise DataError(
            f"{where}: image {path[:60]!r} is no local path; store the file and name it"
        )
    return root / path
