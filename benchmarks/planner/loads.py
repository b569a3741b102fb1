"""Samples of the steps that are planned."""

from __future__ import annotations

from dataclasses import replace

import numpy

from flowtrain.workloads import Workload, preset

_TOKENS_PER_SECOND = 25  # Of Qwen2.5-Omni.
_SPEECH = " and speech"


def load_of(name: str) -> Workload:
    """A preset, or one whose samples have one or two clips of 5 to 30 seconds of speech more."""
    images = preset(name.removesuffix(_SPEECH), 4096, seed=0)
    if not name.endswith(_SPEECH):
        return images
    random = numpy.random.default_rng(0)
    clips = random.integers(1, 3, len(images))
    audio = numpy.rint(_TOKENS_PER_SECOND * clips * random.uniform(5, 30, len(images)))
    audio_tokens = audio.astype(numpy.int64)
    return replace(
        images,
        name=name,
        tokens=images.tokens + audio_tokens,
        audio_tokens=audio_tokens,
        clips=clips,
    )
