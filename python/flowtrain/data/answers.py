"""Where the answers are in a rendered conversation, for chat templates without generation marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from flowtrain.data.errors import DataError

Span = tuple[int, int]
Turn = dict[str, Any]
Render = Callable[..., str]
"""Text of turns by the chat template; with `add_generation_prompt=True` also that prompt."""

# Answers up to which each is found by rendering the turns up to it.
_FEW = 4
# A mark that stands for a text: its number between two characters for private use.
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")


class Answers:
    """Finds what the model would generate: each assistant turn, without the generation prompt.

    An answer begins where the turns before it and the generation prompt end, and ends with the last
    text of the turn that is not white space. Rendering the turns up to each answer would take time
    in the square of their number. Therefore the conversation is rendered once more with marks in
    place of its texts, and answers that stand between the same texts of the template, in turns of
    the same roles, are found alike; only the first of them is rendered. If the template does more
    with a text than to write it, each answer is rendered.

    Args:
        render: Renders turns.
        prompt: The generation prompt behind a user turn.
        where: Data set and line or row, for error messages.
    """

    def __init__(self, render: Render, prompt: str, where: str) -> None:
        self._render = render
        self._generation_prompt = prompt
        self._where = where

    def spans(self, turns: Sequence[Turn], text: str) -> list[Span]:
        """Span of each answer in the text of the turns.

        Raises:
            DataError: An answer does not start with the generation prompt, or the template changes
                it when more turns follow.
        """
        answers = [number for number, turn in enumerate(turns) if turn["role"] == "assistant"]
        places = self._places(turns, text) if len(answers) > _FEW else {}
        known: dict[tuple[object, ...], Span] = {}
        spans = []
        for number in answers:
            if (place := places.get(number)) is None:
                spans.append(self._span(turns, number, text))
                continue
            if place.kind not in known:
                start, end = self._span(turns, number, text)
                known[place.kind] = start - place.start, end - place.end
            before, behind = known[place.kind]
            spans.append((place.start + before, place.end + behind))
        return spans

    def _span(self, turns: Sequence[Turn], number: int, text: str) -> Span:
        """Span of one answer, by rendering the turns up to it."""
        prompt = self._prompt(turns, number)
        is_last = number + 1 == len(turns)
        upto = text if is_last else self._render(turns[: number + 1])
        if not (text.startswith(upto) and upto.startswith(prompt)):
            raise DataError(
                f"{self._where}: turn {number + 1}: its targets are undefined, since the chat "
                "template does not start this answer with its generation prompt, or changes the "
                "answer when more turns follow (as templates of reasoning models do); split the "
                "line, so that each answer is the last turn of one, or add {% generation %} marks "
                "to the template"
            )
        content = "".join(_texts(turns[number]))
        whole = len(prompt) + (len(content) if upto.startswith(content, len(prompt)) else 0)
        return len(prompt), max(whole, len(upto.rstrip()))

    def _prompt(self, turns: Sequence[Turn], number: int) -> str:
        """Text in front of an assistant turn, generation prompt included."""
        prompt = self._generation_prompt
        if number:
            prompted = self._render(turns[:number], add_generation_prompt=True)
            # Some templates add a generation prompt only after a user turn.
            if not prompted.endswith(prompt):
                before = self._render(turns[:number])
                return prompted + prompt if prompted == before else prompted
            return prompted
        # Templates cannot render an empty conversation.
        first = self._render(turns[:1])
        begin = first.find(prompt)
        return first[: begin + len(prompt)] if begin >= 0 else first + prompt

    def _places(self, turns: Sequence[Turn], text: str) -> dict[int, _Place]:
        """Place of each turn that has a text; empty if the template does more than to write it."""
        if _OPEN in text or _CLOSE in text:
            return {}
        texts = list(chain.from_iterable(_texts(turn) for turn in turns))
        try:
            pieces = _MARK.split(self._render(list(_marked(turns))))
        except DataError:
            return {}
        if pieces[1::2] != [str(number) for number in range(len(texts))]:
            return {}
        between = pieces[::2]
        # Some templates write a text without the white space around it.
        for written in (texts, [each.strip() for each in texts]):
            if text == "".join(chain.from_iterable(zip(between, [*written, ""], strict=True))):
                return _placed(turns, between, written)
        return {}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the texts of a turn are.

    Attributes:
        start: Start of its first text.
        end: End of its last text.
        kind: What decides how far the span of an answer reaches beyond them.
    """

    start: int
    end: int
    kind: tuple[object, ...]


def _texts(turn: Turn) -> list[str]:
    return [part["text"] for part in turn["content"] if part.get("text")]


def _marked(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns with a mark in place of each text that is not empty."""
    number = 0
    for turn in turns:
        content = []
        for part in turn["content"]:
            if part.get("text"):
                part = {**part, "text": f"{_OPEN}{number}{_CLOSE}"}
                number += 1
            content.append(part)
        yield {**turn, "content": content}


def _placed(
    turns: Sequence[Turn], between: Sequence[str], written: Sequence[str]
) -> dict[int, _Place]:
    """Places of the turns with texts.

    Args:
        turns: The turns.
        between: What the template writes in front of each text, and behind the last one.
        written: The texts.
    """
    places = {}
    at, first = 0, 0
    roles: list[str] = []
    for number, turn in enumerate(turns):
        roles.append(turn["role"])
        own = _texts(turn)
        if not own:
            continue
        start = at + len(between[first])
        for text in range(first, first + len(own)):
            at += len(between[text]) + len(written[text])
        content = "".join(own)
        spaces = content[0].isspace(), content[-1].isspace()
        ends = number == 0, number + 1 == len(turns)
        texts = between[first], between[first + len(own)]
        places[number] = _Place(start, at, (*texts, *ends, *spaces, *roles))
        first += len(own)
        # The roles of a place are those from the turn of the text in front.
        roles = [turn["role"]]
    return places
