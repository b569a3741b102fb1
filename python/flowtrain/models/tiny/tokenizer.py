"""A tokenizer with a token for each printable ASCII character and each role of a chat."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path

_UNKNOWN = "<|unknown|>"
_ROLES = ("system", "user", "assistant")
_CHATML = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{ 'IMAGE' }}
{%- elif part.type == 'video' -%}{{ 'VIDEO' }}
{%- elif part.type == 'text' -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""


def chatml(image: str, video: str) -> str:
    """Chat template with `<|im_start|>` and `<|im_end|>` around each turn.

    Args:
        image: Text that stands for an image, as in a string literal.
        video: The same for a video.
    """
    return _CHATML.replace("IMAGE", image).replace("VIDEO", video)


def write_tokenizer(
    folder: Path,
    *,
    special: Sequence[str],
    names: Mapping[str, str],
    template: str,
    end: str,
    pad: str,
    begin: str | None = None,
) -> dict[str, int]:
    """Write a tokenizer.

    Args:
        folder: Folder to write to.
        special: Special tokens, in the order of their ids.
        names: Attributes of the tokenizer that name some of them.
        template: Chat template.
        end: Token that ends an answer.
        pad: Token for padding.
        begin: Token that the tokenizer puts in front of a text, or None.

    Returns:
        Token ids.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    characters = [c for c in string.printable if c not in "\t\r\x0b\x0c"]
    words = [*special, _UNKNOWN, *_ROLES, *characters]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    # A role is one token; all other text is one token per character.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"system|user|assistant|[\s\S]"), "isolated"
    )
    tokenizer.decoder = decoders.Fuse()
    if begin is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, vocabulary[begin])]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=end,
        pad_token=pad,
        unk_token=_UNKNOWN,
        extra_special_tokens=dict(names),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return vocabulary
