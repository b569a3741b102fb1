"""Reads the common conversation formats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowtrain.data.errors import DataError, shortened
from flowtrain.data.fields import Fields, either, is_empty
from flowtrain.data.files import IMAGE, VIDEO, Visual, VisualFile, visual_file
from flowtrain.data.options import FIXED, HINTS, OPTIONS, joined, list_rate, pixel_limits

_MARK = re.compile(f"({IMAGE.mark}|{VIDEO.mark})")
_ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant"}
_ROLES["system"] = "system"

_FIELDS = {kind: (kind.value, f"{kind.value}s") for kind in Visual}
_MEDIA = tuple(name for names in _FIELDS.values() for name in names)
_TYPES = {"image": IMAGE, "image_url": IMAGE, "video": VIDEO, "video_url": VIDEO}
_FILE_OF_PART = (*_TYPES, "path", "url")

# Fields that are used. `Fields` refuses all others by their names.
_OF_RECORD = frozenset(("messages", "conversations", *_MEDIA))
# These only name a record, or say where it comes from.
_OF_RECORD |= {"id", "idx", "index", "uid", "uuid", "source", "data_source", "dataset"}
_OF_TURN = frozenset(("role", "from", "content", "value"))
_OF_TEXT = frozenset(("type", "text", *_FILE_OF_PART))
_OF_VISUAL = {kind: _OF_TEXT | {"index"} | OPTIONS[kind] for kind in Visual}
_OF_FRAME = frozenset(("bytes", "path", "url"))
_OF_ENTRY = {kind: _OF_FRAME | OPTIONS[kind] for kind in Visual}
# Every answer is trained with the same weight, and nothing else is.
_WEIGHTS = ("weight", "loss", "train", "loss_weight", "loss_scale")
_TRAINED, _UNTRAINED = dict.fromkeys(_WEIGHTS, 1), dict.fromkeys(_WEIGHTS, 0)
# Names of a prompt and its answer in other formats.
_PAIRS = (
    *(("prompt", "completion"), ("prompt", "response"), ("instruction", "output")),
    *(("question", "answer"), ("query", "response"), ("input", "output")),
)
_BESIDE = "name images and videos beside the turns, with <image> or <video> at the place of each"
_SAME_WEIGHT = (
    "drop the line, as all answers are trained with the same weight, and no other turn is"
)


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


def read_conversation(
    record: dict[str, Any], *, root: Path | None, where: str, ignore: Collection[str] = ()
) -> Conversation:
    """Read a record in one of the formats that `docs/data.md` shows.

    Args:
        record: The object of the sample.
        root: Folder that relative paths of images and videos start from; None refuses them.
        where: Data set and line or row, for error messages.
        ignore: Names of fields that are read as if no object of the record had them.

    Raises:
        DataError: The record has no known format, has a field that would be lost, or does not
            have one file for each mark.
    """
    return _Reader(root, where, ignore).read(record)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place of an image or video in the turns.

    Attributes:
        kind: Image or video.
        file: The file that its part names; None if it is named beside the turns.
        options: Options of its part.
    """

    kind: Visual
    file: Any = None
    options: dict[str, Any] = field(default_factory=dict)


class _Reader:
    """Reads one record; see `read_conversation`."""

    def __init__(self, root: Path | None, where: str, ignore: Collection[str]) -> None:
        self._root = root
        self._where = where
        self._ignore = ignore
        self._fields = Fields(where, ignore)
        self._marks: list[_Mark] = []
        self._counts: Counter[Visual] = Counter()

    def read(self, record: dict[str, Any]) -> Conversation:
        """Read the record."""
        where = self._where
        given = self._fields.used(record, _OF_RECORD)
        turns = either(given, "messages", "conversations", where)
        if not isinstance(turns, list) or not turns:
            raise DataError(f"{where}: {_no_turns(record)}")
        messages = tuple(self._message(turn, number) for number, turn in enumerate(turns, 1))
        self._fields.check()
        texts = [part for turn in messages for part in turn.parts if isinstance(part, str)]
        files = {kind: self._files(given, kind, texts) for kind in Visual}
        self._fields.check()
        return Conversation(messages, tuple(next(files[mark.kind]) for mark in self._marks), where)

    def _files(
        self, record: dict[str, Any], kind: Visual, texts: list[str]
    ) -> Iterator[VisualFile]:
        """All images or all videos of the sample.

        Args:
            record: The object of the sample.
            kind: What to list.
            texts: Texts of all turns.
        """
        where = self._where
        one, many = _FIELDS[kind]
        marks = [mark for mark in self._marks if mark.kind is kind]
        inline = [mark.file for mark in marks if mark.file is not None]
        listed = [*_listed(record.get(many)), *_listed(record.get(one))]
        if inline and listed:
            raise DataError(
                f"{where}: {many} are given both in `{many}` and in the messages; choose one"
            )
        files = listed or inline
        if len(marks) != len(files):
            raise DataError(
                f"{where}: {len(marks)} {one} marks in the messages and {len(files)} {many}; write "
                f"{kind.mark} once for each {one} (where {kind.mark} is text, write content as a "
                "list of parts)"
            )
        # Content that is one text has been split at its marks, so this text is a part of a list.
        if files and any(kind.mark in text for text in texts):
            raise DataError(
                f"{where}: {kind.mark} is in the text of a part, where it does not stand for "
                f'{kind.noun}; remove it, or put a part {{"type": "{one}"}} in its place'
            )
        pairs = enumerate(zip(files, marks, strict=True), 1)
        return iter([self._file(*pair, number) for number, pair in pairs])

    def _file(self, value: Any, mark: _Mark, number: int) -> VisualFile:
        """An image or video, with the options of its part and of its own entry."""
        kind, options, of = mark.kind, mark.options, f"{mark.kind.value} {number}"
        if isinstance(value, dict):
            value = self._fields.used(value, _OF_ENTRY[kind], of, fixed=FIXED, hint=HINTS[kind])
            options = joined(options, value, kind, f"{self._where}: {of}")
        if kind is VIDEO and isinstance(value, list | tuple) and value:
            frames = enumerate(value, 1)
            return VisualFile(
                VIDEO,
                tuple(self._frame(frame, f"{n} of video {number}") for n, frame in frames),
                f"{number} of the record",
                fps=list_rate(options, f"{self._where}: {of}"),
            )
        if kind is VIDEO:
            self._fields.used(options, frozenset(), of, hint=HINTS[kind])
            options = {}
        limits = pixel_limits(options, f"{self._where}: {of}")
        return visual_file(value, kind, str(number), self._root, self._where, limits)

    def _frame(self, value: Any, place: str) -> VisualFile:
        """A frame of a video that is a list of images."""
        if isinstance(value, dict):
            value = self._fields.used(value, _OF_FRAME, f"frame {place}")
        return visual_file(value, IMAGE, place, self._root, self._where)

    def _message(self, turn: Any, number: int) -> Message:
        """Read a turn.

        Args:
            turn: The JSON object.
            number: Number of the turn, from 1.
        """
        of = f"turn {number}"
        where = f"{self._where}: {of}"
        if not isinstance(turn, dict):
            raise DataError(
                f"{where} is {shortened(turn)}; it must be an object with role and content"
            )
        role = either(turn, "role", "from", where)
        if not isinstance(role, str) or role not in _ROLES:
            raise DataError(
                f"{where}: role {shortened(role)}; it must be one of {', '.join(_ROLES)}: "
                "rewrite the turn or drop the line"
            )
        if not turn.keys() <= _OF_TURN or self._ignore:
            fixed = _TRAINED if _ROLES[role] == "assistant" else _UNTRAINED
            hint = _BESIDE if any(not is_empty(turn.get(name)) for name in _MEDIA) else ""
            hint = _SAME_WEIGHT if not turn.keys().isdisjoint(_WEIGHTS) else hint
            turn = self._fields.used(turn, _OF_TURN, of, fixed=fixed, hint=hint)
        content = either(turn, "content", "value", where)
        if isinstance(content, str):
            parts = _split(_text(content, where))
            self._marks += [_Mark(part) for part in parts if isinstance(part, Visual)]
            self._counts.update(part for part in parts if isinstance(part, Visual))
            return Message(_ROLES[role], parts)
        if not isinstance(content, list):
            raise DataError(
                f"{where}: content {shortened(content)}; it must be a text or a list of parts"
            )
        return Message(_ROLES[role], tuple(self._part(part, of) for part in content))

    def _part(self, part: Any, turn: str) -> str | Visual:
        """Read a part of a turn.

        Args:
            part: The JSON object.
            turn: Name of its turn in messages.
        """
        where = f"{self._where}: {turn}"
        given = part.get("type") if isinstance(part, dict) else None
        kind = _TYPES.get(given) if isinstance(given, str) else None
        if given != "text" and kind is None:
            types = ", ".join(["text", *_TYPES][:-1])
            raise DataError(
                f"{where}: part {shortened(part)}; its type must be {types} or {[*_TYPES][-1]}"
            )
        if kind is None:
            if "text" not in part:
                others = ", ".join(shortened(name) for name in part if name != "type")
                raise DataError(
                    f"{where}: a part of type text has {others or 'nothing'} and no 'text'; give "
                    "its words as 'text'"
                )
            part = self._fields.used(part, _OF_TEXT, f"a text of {turn}")
        else:
            of = f"{kind.noun} of {turn}"
            part = self._fields.used(part, _OF_VISUAL[kind], of, hint=HINTS[kind])
        named = {key: files for key in _FILE_OF_PART if (files := _named(part.get(key), kind))}
        for key, files in named.items():
            # A `path` or `url` belongs to any kind.
            if kind is None or _TYPES.get(key, kind) is not kind:
                of_kind = _TYPES.get(key, IMAGE)
                raise DataError(
                    f"{where}: a part of type {given} names the {of_kind.value} "
                    f"{shortened(files[0])}, which would be lost; make it a part of type "
                    f"{of_kind.value}"
                )
        if kind is None:
            return _text(part["text"], where)
        if part.get("text"):
            raise DataError(
                f"{where}: a part of type {given} has the text {shortened(part['text'])}, which "
                "would be lost; make it a part of type text"
            )
        files = [file for files in named.values() for file in files]
        one, many = _FIELDS[kind]
        if len(files) > 1:
            raise DataError(
                f"{where}: a part names {len(files)} {many}; write a part for each {one}"
            )
        number = self._counts[kind]
        if part.get("index") not in (None, number):
            raise DataError(
                f"{where}: a part has index {shortened(part['index'])}, but is {one} {number} of "
                f"the messages (from 0); list the {many} in the order of their parts"
            )
        self._counts[kind] += 1
        options = joined({}, part, kind, where)
        self._marks.append(_Mark(kind, files[0] if files else None, options))
        return kind


def _no_turns(record: dict[str, Any]) -> str:
    """Advice for a record without turns."""
    names = {name for name, value in record.items() if not is_empty(value)}
    give = "give `messages` (or `conversations`), a list of at least one turn"
    if names >= {"chosen", "rejected"}:
        return (
            "'chosen' and 'rejected' are a preference between answers, which is not trained; drop "
            "the line, or write the prompt and the chosen answer as `messages`"
        )
    for prompt, answer in _PAIRS:
        if names >= {prompt, answer}:
            return (
                f"{prompt!r} and {answer!r} are not read; write them as `messages`, such as "
                '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", '
                '"content": "..."}]}'
            )
    return give


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


def _named(value: Any, kind: Visual | None) -> list[Any]:
    """Files that a field of a part names; several of a video are its frames."""
    is_frames = kind is VIDEO and isinstance(value, list | tuple) and len(value) > 1
    return [value] if is_frames else _listed(value)


def _listed(value: Any) -> list[Any]:
    """One value or a list of them as a list, without None and empty strings."""
    values = value if isinstance(value, list) else [value]
    return [v for v in values if not (v is None or (isinstance(v, str) and not v))]
