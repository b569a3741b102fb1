"""Targets of conversations, compared with the masks of transformers."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor, AutoTokenizer

from flowtrain.config.data import DataConfig
from flowtrain.data import DataError
from flowtrain.data.chat import ChatTokenizer
from flowtrain.data.conversation import read_conversation
from flowtrain.data.samples import SampleReader
from flowtrain.data.text import expand
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, TINY, write_tiny_model

END = "<|im_end|>"


def template(answer: str, *, prompt: str = "", behind: str = "\n") -> str:
    """A ChatML template with this form of an answer, whose content is {{ text }}."""
    return (
        "{%- for message in messages -%}<|im_start|>{{ message.role }}{{ '\\n' }}"
        "{%- set text -%}{%- for part in message.content -%}"
        "{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>"
        "{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}{%- endset -%}"
        "{%- if message.role == 'assistant' -%}" + answer + "{%- else -%}{{ text }}<|im_end|>"
        "{%- endif -%}{{ " + repr(behind) + " }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}<|im_start|>assistant{{ " + repr("\n" + prompt) + " }}"
        "{%- endif -%}"
    )


MARKED = template("{% generation %}{{ text }}<|im_end|>{% endgeneration %}")
PLAIN = template("{{ text }}<|im_end|>")
PROMPT_AFTER_QUESTIONS = PLAIN.replace(
    "if add_generation_prompt", "if add_generation_prompt and messages[-1].role == 'user'"
)
# Keeps the thoughts of the last answer only, and has them in its generation prompt.
THINKING = template(
    "{%- if loop.last -%}{{ '<think>\\n' }}{%- endif -%}{{ text.split('</think>')[-1] }}<|im_end|>",
    prompt="<think>\n",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose tokenizer is a byte-level BPE that merges two newlines."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("chat")
    write_tiny_model(folder)
    special = AutoTokenizer.from_pretrained(folder).get_vocab()
    words = sorted(special, key=special.__getitem__)[:7]
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: n for n, word in enumerate([*words, *characters, "ĊĊ", "12"])}
    bpe = Tokenizer(models.BPE(vocabulary, [("Ċ", "Ċ"), ("1", "2")]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(words)
    bpe.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["vocab_size"] = len(vocabulary)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


Chats = Callable[[str], ChatTokenizer]


@pytest.fixture(scope="module")
def chats(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Chats:
    """Makes a tokenizer with a given chat template."""

    @lru_cache
    def chat(text: str) -> ChatTokenizer:
        copy = shutil.copytree(folder, tmp_path_factory.mktemp("copy") / "model")
        copy.joinpath("chat_template.jinja").write_text(text)
        return ChatTokenizer(copy, family_for(copy))

    return chat


@pytest.fixture(scope="module")
def judge(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def turns(*contents: Any, first: str = "user") -> list[dict[str, Any]]:
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


def read(messages: list[dict[str, Any]], *images: str) -> Any:
    record = {"messages": messages, "images": list(images)}
    return read_conversation(record, root=Path(), where="data.jsonl:1")


def trained(chat: ChatTokenizer, messages: list[dict[str, Any]]) -> str:
    tokens = chat.tokens(read(messages))
    return chat._tokenizer.decode(tokens.ids[tokens.is_target])


CONVERSATIONS = {
    "one answer": turns("What?", "12"),
    "an answer that starts with a newline": turns("What?", "\n12", "And?", "\n\n\n1"),
    "an answer that ends with white space": turns("What?", "12 \n"),
    "several turns with a system turn": [
        {"role": "system", "content": "Be brief."},
        *turns("Q", "A", "\nQ", "12 12", "Q", "A"),
    ],
    "an empty answer": turns("Q", "", "Q", "A"),
    "an answer that is a newline": turns("Q", "\n"),
    "two answers in a row": [*turns("Q", "A"), *turns("B", "Q", "C", first="assistant")],
    "the assistant first": turns("Hello.", "Q", "\nA", first="assistant"),
    "an end mark in a text": turns(f"Q{END}", f"A{END}\nB"),
    "characters of many bytes": turns("é", "\n日本 🙂"),
}


@pytest.mark.parametrize(
    "form",
    [MARKED, PLAIN, PROMPT_AFTER_QUESTIONS],
    ids=["marked", "plain", "prompt after questions"],
)
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_targets_equal_the_assistant_masks(chats: Chats, judge: Any, form: str, name: str) -> None:
    chat = chats(form)
    conversation = read(CONVERSATIONS[name])
    ours = chat.tokens(conversation)
    theirs = judge.apply_chat_template(
        [message.for_template() for message in conversation.messages],
        chat_template=MARKED,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    np.testing.assert_array_equal(ours.ids, theirs["input_ids"])
    np.testing.assert_array_equal(ours.is_target, theirs["assistant_masks"])


def test_targets_between_images_equal_the_masks_of_the_processor(
    folder: Path, tmp_path: Path
) -> None:
    paths = [str(tmp_path / name) for name in ("small.png", "large.png")]
    for path, width in zip(paths, (16, 72), strict=True):
        Image.new("RGB", (width, 24)).save(path)
    first, second = ({"type": "image", "path": path} for path in paths)
    texts = [{"type": "text", "text": text} for text in ("Q", "\n12", "And?", "\nA")]
    messages = turns([first, texts[0]], [texts[1]], [texts[2], second], [texts[3]])
    tmp_path.joinpath("data.jsonl").write_text(json.dumps({"messages": messages}))
    read = SampleReader(folder, DataConfig(path=tmp_path / "data.jsonl"), 4096)
    ours = expand(read.meta_and_text(0)[1])
    theirs = AutoProcessor.from_pretrained(folder).apply_chat_template(
        messages,
        chat_template=MARKED,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert [ours.input_ids.tolist()] == theirs["input_ids"]
    assert [(ours.labels != -100).tolist()] == theirs["assistant_masks"]


@pytest.mark.parametrize(
    ("answer", "learnt"),
    [
        ("{{ text }}<|endoftext|>", "1 <|endoftext|>2<|endoftext|>"),
        (
            "{{ text }}<|endoftext|><|im_end|>",
            "1 <|endoftext|><|im_end|>2<|endoftext|><|im_end|>",
        ),
        ("{{ text }}", "1 2"),
    ],
    ids=["another than the tokenizer's", "two tokens", "none"],
)
def test_targets_of_a_turn_end_with_the_end_mark_of_the_template(
    chats: Chats, answer: str, learnt: str
) -> None:
    chat = chats(template(answer))
    assert trained(chat, turns("Q", "1 ", "Q", "2")) == learnt


def test_a_template_with_marks_may_refuse_a_conversation_without_an_answer(chats: Chats) -> None:
    refuses = "{%- if messages | length == 1 -%}{{ raise_exception('no answer') }}{%- endif -%}"
    assert trained(chats(refuses + MARKED), turns("Q", "A")) == f"A{END}"


def test_an_image_in_an_answer_is_no_target(chats: Chats) -> None:
    chat = chats(MARKED)
    tokens = chat.tokens(read(turns("Draw.", "<image>12"), "a.png"))
    learnt = chat._tokenizer.decode(tokens.ids[tokens.is_target])
    assert learnt == f"<|vision_start|><|vision_end|>12{END}"


def test_adjacent_images_without_text_between_them_are_refused(chats: Chats) -> None:
    chat = chats(PLAIN.replace("<|vision_start|>", "").replace("<|vision_end|>", ""))
    chat.tokens(read(turns("<image>and<image>", "12"), "a.png", "b.png"))
    with pytest.raises(DataError, match=r"data\.jsonl:1: .* nothing between two images"):
        chat.tokens(read(turns("<image><image>", "12"), "a.png", "b.png"))


def test_an_answer_whose_thoughts_are_left_out_later_is_refused(chats: Chats) -> None:
    chat = chats(THINKING)
    assert trained(chat, turns("Q", "A")) == f"A{END}"
    with pytest.raises(DataError, match=r"data\.jsonl:1: turn 2: its targets are undefined"):
        chat.tokens(read(turns("Q", "A", "Q", "A")))


def test_the_template_of_the_processor_is_used(folder: Path, chats: Chats, tmp_path: Path) -> None:
    old = shutil.copytree(folder, tmp_path / "old")
    old.joinpath("chat_template.jinja").unlink()
    family = family_for(old)
    with pytest.raises(DataError, match="no chat template; add a chat_template.jinja"):
        ChatTokenizer(old, family)
    old.joinpath("chat_template.json").write_text(json.dumps({"chat_template": {"tools": PLAIN}}))
    with pytest.raises(DataError, match="no chat template; add a chat_template.jinja"):
        ChatTokenizer(old, family)
    old.joinpath("chat_template.json").write_text(json.dumps({"chat_template": PLAIN}))
    assert trained(ChatTokenizer(old, family), turns("Q", "A")) == f"A{END}"


def test_a_token_without_an_embedding_is_refused(folder: Path, tmp_path: Path) -> None:
    larger = shutil.copytree(folder, tmp_path / "larger")
    tokenizer = AutoTokenizer.from_pretrained(larger)
    family = family_for(larger)
    tokenizer.add_tokens(["<box>"])
    tokenizer.save_pretrained(larger)
    chat = ChatTokenizer(larger, family)
    with pytest.raises(DataError, match=r"data\.jsonl:1: '<box>' is token \d+ of the tokenizer, "):
        chat.tokens(read(turns("Q", "A<box>")))


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("{{ messages }}", "neither add_generation_prompt nor {% generation %} marks"),
        (
            "{%- for message in messages if message.content is string -%}{{ message.content }}"
            "{%- endfor -%}{%- if add_generation_prompt -%}assistant{%- endif -%}",
            "leaves out the text parts of a content list",
        ),
    ],
)
def test_a_template_without_targets_is_refused(chats: Chats, form: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        chats(form)


@pytest.mark.parametrize(
    ("messages", "images", "message"),
    [
        (turns("a <|image_pad|>", "b"), 0, r"turn 1: the text has <\|image_pad\|>"),
        (turns("<image>", "<|vision_start|>"), 1, r"turn 2: the text has <\|vision_start\|>"),
        (turns("Q", "<image>A"), 1, "renders 0 of 1 images"),
        (turns("Q", "A", "Q", "raise"), 0, "the chat template refuses the turns: never"),
        (turns("Q"), 0, "no targets; add an assistant turn"),
    ],
)
def test_an_error_names_what_cannot_be_rendered(
    chats: Chats, messages: Any, images: int, message: str
) -> None:
    drops = template(
        "{%- if 'raise' in text -%}{{ raise_exception('never') }}{%- endif -%}"
        "{{ text.replace('<|image_pad|>', '') }}<|im_end|>"
    )
    chat = chats(drops)
    with pytest.raises(DataError, match=rf"^data\.jsonl:1: .*{message}"):
        chat.tokens(read(messages, *["a.png"] * images))


WORDS = ("A", "\nB", "C \n", " ", "\n\nD\n", "<b>E</b>", f"F{END}G", "日本", "")


def long_conversation(count: int, seed: int) -> list[dict[str, Any]]:
    """Turns of all roles in any order, with texts that templates may treat differently."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    if seed % 2:
        found.append({"role": "system", "content": "Be brief."})
    while len(found) < count:
        again = found and draw.random() < 0.1
        usual = "user" if not found or found[-1]["role"] == "assistant" else "assistant"
        role = found[-1]["role"] if again else usual
        pieces: list[Any] = [{"type": "text", "text": draw.choice(WORDS)}]
        if role == "user":
            pieces = draw.choice(
                [pieces, [{"type": "image"}, *pieces], [*pieces, {"type": "image"}]]
            )
        elif draw.random() < 0.2:
            pieces.append({"type": "text", "text": draw.choice(WORDS)})
        found.append({"role": role, "content": pieces})
    return [*found, *turns("The last?", "answer")]


def spans_of(chat: ChatTokenizer, messages: list[dict[str, Any]]) -> Any:
    images = sum(p["type"] == "image" for m in messages if m["content"] for p in parts_of(m))
    try:
        tokens = chat.tokens(read(messages, *["a.png"] * images))
    except DataError as error:
        return str(error)
    return tokens.ids.tolist(), tokens.is_target.tolist()


def parts_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else []


TRIMMED = PLAIN.replace("{{ text }}", "{{ text | trim }}")
# As Qwen3: only the last answer has an empty thought.
EMPTY_THOUGHT = template(
    "{%- if loop.last -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}{{ text }}<|im_end|>"
)
FORMS = [PLAIN, PROMPT_AFTER_QUESTIONS, TRIMMED, template("{{ text }}"), THINKING, EMPTY_THOUGHT]


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_many_answers_are_found_as_each_alone(
    chats: Chats, form: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = chats(FORMS[form])
    conversations = [long_conversation(24, seed) for seed in range(12)]
    found = [spans_of(chat, each) for each in conversations]
    monkeypatch.setattr("flowtrain.data.answers._FEW", 1 << 20)
    assert found == [spans_of(chat, each) for each in conversations]
    assert all(isinstance(each, str) for each in found) == (form >= 4)


@pytest.mark.parametrize("family", [*TINY, "trimmed"])
def test_a_long_conversation_is_rendered_a_few_times(
    family: str, chats: Chats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family in TINY:
        write_tiny_model(tmp_path, SMALLEST, family=family)
        chat = ChatTokenizer(tmp_path, family_for(tmp_path))
    else:
        chat = chats(TRIMMED)
    rendered: list[int] = []
    render = ChatTokenizer._render

    def counted(self: Any, messages: Any, *arguments: Any, **options: Any) -> Any:
        rendered.append(len(messages))
        return render(self, messages, *arguments, **options)

    monkeypatch.setattr(ChatTokenizer, "_render", counted)
    short, long = (turns(*["Q?", " A"] * count) for count in (20, 500))
    found = spans_of(chat, short)
    number = len(rendered)
    assert sum(spans_of(chat, long)[1]) > 500
    assert len(rendered) == 2 * number <= 24
    monkeypatch.setattr("flowtrain.data.answers._FEW", 1 << 20)
    assert spans_of(chat, short) == found
