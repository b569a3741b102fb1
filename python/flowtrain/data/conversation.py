"""Reads the common conversation formats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowtrain.data.errors import DataError, shortened
from flowtrain.data.files import IMAGE, VIDEO, Visual, VisualFile, either, visual_files

_MARK = re.compile(f"({IMAGE.mark}|{VIDEO.mark})")
_ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant"}
_ROLES["system"] = "system"

# Fields that are not read although they mean something.
_MEDIA = ("audio", "audios")
_UNREAD = ("system", "tools", "functions", *_MEDIA)
_UNREAD_OF_TURN = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
_FIELDS = {kind: (kind.value, f"{kind.value}s") for kind in Visual}
_TYPES = {"image": IMAGE, "image_url": IMAGE, "video": VIDEO, "video_url": VIDEO}
_FILE_OF_PART = (*_TYPES, "path", "url")
# Options of a video that other tools read from its part.
_SAMPLING = ("fps", "nframes", "num_frames", "min_frames", "max_frames", "video_start", "video_end")
_WEIGHTS = ("weight", "loss", "train")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: its role, and its texts and visuals in order."""

    role: str
    parts: tuple[str | Visual, ...]

    def for_template(self) -> dict[str, Any]:
        """The turn in the form that chat templates take."""
        parts = [
            {"type": part.value} if isinstance(part, Visual) else {"type": "text", "text": part}
            for part in self.parts
        ]
        return {"role": self.role, "content": parts}


@dataclass(frozen=True, slots=True)
class Conversation:
    """One sample.

    Attributes:
        messages: Its turns.
        visuals: The files of its images and videos, in the order of their marks.
        where: Data set and line or row, for error messages.
    """

    messages: tuple[Message, ...]
    visuals: tuple[VisualFile, ...]
    where: str

    @property
    def num_images(self) -> int:
        """Images of the sample, without its videos."""
        return sum(visual.kind is IMAGE for visual in self.visuals)


def read_conversation(record: dict[str, Any], *, root: Path | None, where: str) -> Conversation:
    """Read a record in one of the formats that `docs/data.md` shows.

    Args:
        record: The object of the sample.
        root: Folder that relative paths of images and videos start from; None refuses them.
        where: Data set and line or row, for error messages.

    Raises:
        DataError: The record has no known format, has a field that would be lost, or does not
            have one file for each mark.
    """
    _refuse(record, _UNREAD, where)
    turns = either(record, "messages", "conversations", where)
    if not isinstance(turns, list) or not turns:
        raise DataError(
            f"{where}: give `messages` (or `conversations`), a list of at least one turn"
        )
    inline: dict[Visual, list[Any]] = {kind: [] for kind in Visual}
    messages: list[Message] = []
    for number, turn in enumerate(turns, 1):
        messages.append(_message(turn, inline, messages, f"{where}: turn {number}"))
    parts = [part for message in messages for part in message.parts]
    files = {kind: iter(_files(record, kind, inline[kind], parts, root, where)) for kind in Visual}
    marks = [part for part in parts if isinstance(part, Visual)]
    return Conversation(tuple(messages), tuple(next(files[kind]) for kind in marks), where)


def _files(
    record: dict[str, Any],
    kind: Visual,
    inline: list[Any],
    parts: list[str | Visual],
    root: Path | None,
    where: str,
) -> list[VisualFile]:
    """All images or all videos of a sample.

    Args:
        record: The object of the sample.
        kind: What to list.
        inline: Those that parts of the messages name.
        parts: Parts of all messages.
        root: Folder that relative paths start from.
        where: Data set and line or row, for error messages.
    """
    one, many = _FIELDS[kind]
    listed = [*_listed(record.get(many)), *_listed(record.get(one))]
    if inline and listed:
        raise DataError(
            f"{where}: {many} are given both in `{many}` and in the messages; choose one"
        )
    files = listed or inline
    marks, mark = parts.count(kind), kind.mark
    if marks != len(files):
        raise DataError(
            f"{where}: {marks} {one} marks in the messages and {len(files)} {many}; write "
            f"{mark} once for each {one} (where {mark} is text, write content as a list of parts)"
        )
    # Content that is one text has been split at its marks, so this text is a part of a list.
    if files and any(isinstance(part, str) and mark in part for part in parts):
        raise DataError(
            f"{where}: {mark} is in the text of a part, where it does not stand for {kind.noun}; "
            f'remove it, or put a part {{"type": "{one}"}} in its place'
        )
    return visual_files(files, kind, root=root, where=where)


def _message(
    turn: Any, inline: dict[Visual, list[Any]], before: list[Message], where: str
) -> Message:
    """Read a turn.

    Args:
        turn: The JSON object.
        inline: Receives the files that its parts name.
        before: The turns before it.
        where: File, line and turn, for error messages.
    """
    if not isinstance(turn, dict):
        raise DataError(f"{where} is {shortened(turn)}; it must be an object with role and content")
    _refuse(turn, (*_UNREAD_OF_TURN, *_MEDIA), where)
    for kind, fields in _FIELDS.items():
        for field in fields:
            if _listed(turn.get(field)):
                raise DataError(
                    f"{where}: {field!r} within a turn is not read; name the {fields[1]} beside "
                    f"the turns, and write {kind.mark} at the place of each"
                )
    role = either(turn, "role", "from", where)
    content = either(turn, "content", "value", where)
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
        raise DataError(
            f"{where}: content {shortened(content)}; it must be a text or a list of parts"
        )
    parts = [part for message in before for part in message.parts]
    for part in content:
        parts.append(_part(part, inline, parts, where))
    return Message(_ROLES[role], tuple(parts[len(parts) - len(content) :]))


def _part(
    part: Any, inline: dict[Visual, list[Any]], before: list[str | Visual], where: str
) -> str | Visual:
    """Read a part of a turn.

    Args:
        part: The JSON object.
        inline: Receives the file that it names.
        before: The parts before it, in all turns.
        where: File, line and turn, for error messages.
    """
    given = part.get("type") if isinstance(part, dict) else None
    kind = _TYPES.get(given) if isinstance(given, str) else None
    if given != "text" and kind is None:
        types = ", ".join(["text", *_TYPES][:-1])
        raise DataError(
            f"{where}: part {shortened(part)}; its type must be {types} or {[*_TYPES][-1]}"
        )
    _refuse(part, _MEDIA, where)
    named = {key: files for key in _FILE_OF_PART if (files := _listed(part.get(key)))}
    for key, files in named.items():
        # A `path` or `url` belongs to any kind.
        if kind is None or _TYPES.get(key, kind) is not kind:
            of = _TYPES.get(key, IMAGE)
            raise DataError(
                f"{where}: a part of type {given} names the {of.value} {shortened(files[0])}, "
                f"which would be lost; make it a part of type {of.value}"
            )
    if kind is None:
        if "text" not in part:
            others = ", ".join(repr(name) for name in part if name != "type")
            raise DataError(
                f"{where}: a part of type text has {others or 'nothing'} and no 'text'; give its "
                "words as 'text'"
            )
        return _text(part["text"], where)
    if part.get("text"):
        raise DataError(
            f"{where}: a part of type {given} has the text {shortened(part['text'])}, which "
            "would be lost; make it a part of type text"
        )
    files = [file for files in named.values() for file in files]
    one, many = _FIELDS[kind]
    if len(files) > 1:
        raise DataError(f"{where}: a part names {len(files)} {many}; write a part for each {one}")
    for key in _SAMPLING if kind is VIDEO else ():
        if part.get(key) is not None:
            raise DataError(
                f"{where}: {key}={part[key]!r} of a video is not read; set data.video_fps and "
                "data.video_max_frames for all videos, and remove it"
            )
    number = before.count(kind)
    if part.get("index") not in (None, number):
        raise DataError(
            f"{where}: a part has index {part['index']!r}, but is {one} {number} of the messages "
            f"(from 0); list the {many} in the order of their parts"
        )
    inline[kind] += files
    return kind


def _text(text: Any, where: str) -> str:
    if not isinstance(text, str):
        raise DataError(f"{where}: text={shortened(text)}; it must be a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the text is not Unicode ({error}); correct it") from error
    return text


def _split(text: str) -> tuple[str | Visual, ...]:
    marks = {kind.mark: kind for kind in Visual}
    return tuple(marks.get(piece, piece) for piece in _MARK.split(text) if piece)


def _listed(value: Any) -> list[Any]:
    """One value or a list of them as a list, without None and empty strings."""
    values = value if isinstance(value, list) else [value]
    return [v for v in values if not (v is None or (isinstance(v, str) and not v))]


def _refuse(given: dict[str, Any], fields: tuple[str, ...], where: str) -> None:
    for field in fields:
        if given.get(field):
            raise DataError(
                f"{where}: {field!r} is not read, and its content would be lost; write it into "
                "the text of a turn, or drop the line"
            )
