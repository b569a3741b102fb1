"""Tokens of a conversation, and which of them are targets."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowtrain.data.answers import Answers, Span
from flowtrain.data.conversation import Conversation, Message
from flowtrain.data.errors import DataError, cut
from flowtrain.data.files import IMAGE, VIDEO, Visual

if TYPE_CHECKING:
    from flowtrain.models.family import Family

# The pattern that transformers uses.
_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, slots=True)
class ChatTokens:
    """Tokens of a conversation; each block of a visual is one token.

    Attributes:
        ids: Token ids, shape [num_tokens].
        is_target: Whether a token is a target, shape [num_tokens].
        kind: 0 for text, 1 for a block of an image, 2 for one of a video, shape [num_tokens].
        starts: Number of the first token of each visual, which may be text that the processor puts
            in front of its blocks, shape [num_visuals].
    """

    ids: NDArray[np.int64]
    is_target: NDArray[np.bool_]
    kind: NDArray[np.uint8]
    starts: NDArray[np.int64]


def end_ids(model_folder: Path) -> set[int]:
    """Tokens that end an answer when the model generates.

    They are those of the folder's generation configuration, or else the tokenizer's own.
    """
    from transformers import AutoTokenizer

    path = model_folder / "generation_config.json"
    found = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
    if found is None:
        found = AutoTokenizer.from_pretrained(model_folder).eos_token_id
    return set(found if isinstance(found, list) else [found]) - {None}


def _encoder(tokenizer: Any, folder: Path) -> Any:
    """The backend of a tokenizer, which encodes whole texts."""
    encoder = getattr(tokenizer, "backend_tokenizer", None)
    if encoder is None:
        raise DataError(
            f"{folder}: {type(tokenizer).__name__} does not tell the place of each token in its "
            "text, which targets are found by; add the tokenizer.json of a fast tokenizer"
        )
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _touches(
    spans: list[Span], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether each token overlaps a span.

    Args:
        spans: Spans that do not overlap, in order.
        starts: First character of each token.
        ends: End of each token.
    """
    bounds = np.array([(-1, -1), *spans], dtype=np.int64)
    # The last span that starts before the end of the token.
    last = np.searchsorted(bounds[:, 0], ends, side="left") - 1
    return starts < bounds[last, 1]


class ChatTokenizer:
    """Renders conversations with a model's chat template and marks the targets.

    Target text is the text between `{% generation %}` and `{% endgeneration %}` of the template.
    If the template has no such marks, it is each turn of the assistant, from the end of the
    generation prompt to the end mark of the turn, without white space after the mark. A token is
    a target if it overlaps target text, as in `assistant_masks` of transformers' processors.
    Image tokens are never targets.

    Args:
        model_folder: Hugging Face folder with tokenizer and chat template.
        family: Family of the model.

    Attributes:
        image_start_id: The token in front of an image, or None.
        end_ids: Tokens that end an answer when the model generates.

    Raises:
        DataError: The folder has no chat template from which targets can be determined.
    """

    def __init__(self, model_folder: Path, family: Family) -> None:
        from transformers import AutoTokenizer, ProcessorMixin

        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)
        # Calls of the tokenizer itself, and its properties, take longer than all other work on a
        # short text.
        self._encoder = _encoder(self._tokenizer, model_folder)
        self._first_token: str | None = self._tokenizer.bos_token
        self._special_tokens: dict[str, Any] = self._tokenizer.special_tokens_map
        # Only the processor reads chat_template.json, and it prefers its own template.
        processor, _ = ProcessorMixin.get_processor_dict(model_folder)
        template = processor.get("chat_template") or self._tokenizer.chat_template
        self._template: Any = template.get("default") if isinstance(template, dict) else template
        if not self._template:
            raise DataError(f"{model_folder}: no chat template; add a chat_template.jinja")
        self._has_marks = _MARKS.search(self._template) is not None
        self._vocabulary = family.vocabulary(self._tokenizer)
        self._block_ids = [family.image_id, *([] if family.video_id is None else [family.video_id])]
        image_mark: Any = self._tokenizer.convert_ids_to_tokens(family.image_id)
        marks = [re.escape(image_mark)]
        if self._vocabulary.video_mark is not None:
            marks.append(f"(?P<video>{re.escape(self._vocabulary.video_mark)})")
        self._visual_marks = re.compile("|".join(marks))
        self.image_start_id = self._vocabulary.image_start_id
        self.end_ids = end_ids(model_folder)
        self._check_template(str(model_folder))

    def check_ids(self, ids: NDArray[Any], where: str) -> None:
        """Refuse tokens that the model has no embedding for.

        Raises:
            DataError: There is one.
        """
        if (largest := int(ids.max(initial=0))) >= self._vocabulary.size:
            raise DataError(
                f"{where}: {self._tokenizer.convert_ids_to_tokens(largest)!r} is token {largest} "
                f"of the tokenizer, but the model has vocab_size={self._vocabulary.size}; enlarge "
                "the model's embeddings, or use a tokenizer without added tokens"
            )

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of tokens, with special tokens or without."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not special)
        return text

    def tokens(self, conversation: Conversation, videos: Sequence[str] = ()) -> ChatTokens:
        """Tokens of a conversation.

        Args:
            conversation: The conversation, its visuals in the order of the rendered text.
            videos: The text of each of its videos, with one placeholder for each block.

        Raises:
            DataError: A text has a placeholder token or a token without an embedding; the template
                refuses a turn, leaves out a visual, or puts nothing between two images; or there is
                no target.
        """
        [tokens] = self.tokens_together([conversation], [videos])
        return tokens

    def tokens_together(
        self, conversations: Sequence[Conversation], videos: Sequence[Sequence[str]]
    ) -> list[ChatTokens]:
        """`tokens` of several conversations, each stage for all of them before the next one."""
        written = [self._written(*each) for each in zip(conversations, videos, strict=True)]
        # As processors do: a template either writes the first token or leaves it to the tokenizer.
        begin = self._first_token
        encoded = [
            self._encoder.encode(
                text, add_special_tokens=begin is None or not text.startswith(begin)
            )
            for text, _, _ in written
        ]
        return [
            self._tokens(conversation, spans, visual_at, encoding)
            for conversation, (_, spans, visual_at), encoding in zip(
                conversations, written, encoded, strict=True
            )
        ]

    def _written(
        self, conversation: Conversation, videos: Sequence[str]
    ) -> tuple[str, list[Span], list[int]]:
        """Text of a conversation, its target spans, and where each visual starts."""
        where = conversation.where
        self._check_texts(conversation)
        messages = [message.for_template() for message in conversation.messages]
        text, spans = self._render(messages, where)
        if not self._has_marks:

            def render(turns: list[dict[str, Any]], **options: bool) -> str:
                return self._render(turns, where, **options)[0]

            spans = Answers(render, self._generation_prompt, where).spans(messages, text)
        return self._with_visuals(text, spans, conversation, videos)

    def _tokens(
        self, conversation: Conversation, spans: list[Span], visual_at: list[int], encoded: Any
    ) -> ChatTokens:
        """Tokens of an encoded text.

        Args:
            conversation: The conversation that it is the text of.
            spans: Target spans of the text.
            visual_at: Where each visual starts in it.
            encoded: The encoding of the tokenizer's backend.
        """
        where = conversation.where
        ids = np.array(encoded.ids, dtype=np.int64)
        starts, ends = np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2).T
        self.check_ids(ids, where)
        # Tokens that the tokenizer adds end at 0, wherever they stand.
        first = np.searchsorted(np.maximum.accumulate(ends), visual_at, side="right")
        kind = self._kinds(ids, first, conversation)
        touch = ((kind[1:] > 0) & (kind[1:] == kind[:-1])).any()
        if touch and not self._vocabulary.images_may_touch:
            raise DataError(
                f"{where}: the chat template puts nothing between two images, so that the model "
                "would take them for one; make it write tokens around each image, as the "
                "processor's template does"
            )
        is_target = _touches(spans, starts, ends) & (kind == 0)
        # Nothing predicts the first token.
        if not is_target[1:].any():
            raise DataError(f"{where}: no targets; add an assistant turn with text")
        return ChatTokens(ids, is_target, kind, first)

    def in_rendered_order(self, conversation: Conversation) -> Conversation:
        """The conversation with its visuals in the order in which the template renders them.

        Some templates put all images of a turn in front of its videos.

        Raises:
            DataError: The template refuses a turn.
        """
        kinds = [visual.kind for visual in conversation.visuals]
        if len(set(kinds)) < len(Visual):
            return conversation
        messages = [message.for_template() for message in conversation.messages]
        text, _ = self._render(messages, conversation.where)
        self._check_marks(rendered := self._rendered(text), conversation)
        files = {
            kind: iter([visual for visual in conversation.visuals if visual.kind is kind])
            for kind in Visual
        }
        return replace(conversation, visuals=tuple(next(files[kind]) for kind in rendered))

    def _rendered(self, text: str) -> list[Visual]:
        """Kinds of the visuals whose marks the template has rendered."""
        found = self._visual_marks.finditer(text)
        return [VIDEO if mark.lastgroup else IMAGE for mark in found]

    def _with_visuals(
        self, text: str, spans: list[Span], conversation: Conversation, videos: Sequence[str]
    ) -> tuple[str, list[Span], list[int]]:
        """Replace each mark that the template renders by the text of its visual.

        Returns:
            The text, the spans in it, and where each visual starts.
        """
        self._check_marks(self._rendered(text), conversation)
        of_videos = iter(videos)
        pieces: list[str] = []
        visual_at: list[int] = []
        ends: list[int] = []
        gained = [0]
        done = 0
        for mark in self._visual_marks.finditer(text):
            own = next(of_videos) if mark.lastgroup else self._vocabulary.image_text or mark[0]
            visual_at.append(mark.start() + gained[-1])
            pieces += [text[done : mark.start()], own]
            done = mark.end()
            ends.append(done)
            gained.append(gained[-1] + len(own) - len(mark[0]))
        moved = [tuple(at + gained[bisect_right(ends, at)] for at in span) for span in spans]
        return "".join([*pieces, text[done:]]), [(a, b) for a, b in moved], visual_at

    def _check_marks(self, rendered: list[Visual], conversation: Conversation) -> None:
        """Refuse a text that does not have one mark for each visual of the conversation."""
        given = [visual.kind for visual in conversation.visuals]
        for kind in Visual:
            if rendered.count(kind) != given.count(kind):
                raise DataError(
                    f"{conversation.where}: the chat template renders {rendered.count(kind)} of "
                    f"{given.count(kind)} {kind.value}s; if it omits {kind.value}s of assistant or "
                    "system turns, move them into user turns"
                )

    def _kinds(
        self, ids: NDArray[np.int64], first: NDArray[np.int64], conversation: Conversation
    ) -> NDArray[np.uint8]:
        """Kind of each token: 0 for text, 1 for a block of an image, 2 for one of a video."""
        kind = np.zeros(len(ids), dtype=np.uint8)
        # `np.isin` and `np.unique` would take a tenth of the time of a sample.
        is_block = np.logical_or.reduce([ids == block_id for block_id in self._block_ids])
        block_at = np.flatnonzero(is_block)
        owner = np.searchsorted(first, block_at, side="right") - 1
        of_visual = [1 + (visual.kind is VIDEO) for visual in conversation.visuals]
        if set(owner.tolist()) != set(range(len(of_visual))):
            raise DataError(
                f"{conversation.where}: the tokenizer does not make a placeholder token of each "
                "image and video; use the tokenizer that belongs to the model"
            )
        kind[block_at] = np.array(of_visual, dtype=np.uint8)[owner]
        return kind

    def _check_template(self, folder: str) -> None:
        if not self._has_marks and "add_generation_prompt" not in self._template:
            raise DataError(
                f"{folder}: the chat template has neither add_generation_prompt nor "
                "{% generation %} marks, so that answers cannot be found in its text; add one"
            )
        turns = [Message("user", ("a question",)), Message("assistant", ("an answer",))]
        messages = [turn.for_template() for turn in turns]
        text, _ = self._render(messages, folder)
        if "a question" not in text or "an answer" not in text:
            raise DataError(
                f"{folder}: the chat template leaves out the text parts of a content list, as "
                "templates without images do; use the template of the model's processor"
            )
        self._generation_prompt = ""
        if not self._has_marks:
            turn, _ = self._render(messages[:1], folder)
            prompted, _ = self._render(messages[:1], folder, add_generation_prompt=True)
            self._generation_prompt = prompted.removeprefix(turn)

    def _check_texts(self, conversation: Conversation) -> None:
        for number, message in enumerate(conversation.messages, 1):
            for part in message.parts:
                for token in self._vocabulary.placeholders:
                    if isinstance(part, str) and token in part:
                        raise DataError(
                            f"{conversation.where}: turn {number}: the text has {token}, which the "
                            "model takes for an image or a video; remove it, or write <image> or "
                            "<video> and name the file"
                        )

    def _render(
        self, messages: list[dict[str, Any]], where: str, *, add_generation_prompt: bool = False
    ) -> tuple[str, list[Span]]:
        """Text of the turns, and the spans between generation marks."""
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered: Any = render_jinja_template(
                [messages],
                chat_template=self._template,
                return_assistant_tokens_mask=self._has_marks,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise DataError(
                f"{where}: the chat template refuses the turns: {cut(str(error))}"
            ) from error
        texts, spans = rendered
        return texts[0], spans[0] if spans else []
