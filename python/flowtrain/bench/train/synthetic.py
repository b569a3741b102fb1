"""Writes samples of given sizes: a JSONL file, images and a tiny model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from flowtrain.models.tiny import TinyModel, write_tiny_model
from flowtrain.workloads import preset

_JPEG_QUALITY = 90
# Markup of a question and its answer, and of an image, in tokens.
_TURNS, _IMAGE = 10, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """Size and format of the images of written samples."""

    token_pixels: int = 8
    """Pixels of a token on each side; those of the tiny models."""
    max_tokens: int = 64
    """A larger image becomes several: in a narrow encoder, attention over thousands of patches
    would cost more than everything else, which it does not in a wide one."""
    smooth: bool = False
    """Whether they are JPEGs that are smooth as photographs, and not PNGs of noise."""

    def write(self, path: Path, size: tuple[int, int], generator: np.random.Generator) -> Path:
        """Write an image of `size` rows and columns in tokens; returns its path, with the suffix.

        Args:
            path: Path without a suffix.
            size: Rows and columns, in tokens.
            generator: Source of the contents.
        """
        rows, columns = size
        if not self.smooth:
            pixels = (rows * self.token_pixels, columns * self.token_pixels, 3)
            path = path.with_suffix(".png")
            Image.fromarray(generator.integers(0, 256, pixels, dtype=np.uint8)).save(path)
            return path
        path = path.with_suffix(".jpg")
        noise = Image.fromarray(generator.integers(0, 256, (rows, columns, 3), dtype=np.uint8))
        full = (columns * self.token_pixels, rows * self.token_pixels)
        noise.resize(full, Image.Resampling.BICUBIC).save(path, quality=_JPEG_QUALITY)
        return path


TINY_IMAGES = Images()


def write_workload(
    folder: Path,
    name: str,
    *,
    samples: int,
    seed: int,
    scale: float,
    max_tokens: int,
    sizes: TinyModel | None = None,
) -> None:
    """Write samples with about `scale` times the text and image tokens of a preset's samples.

    Args:
        folder: Folder to write, created if it does not exist.
        name: One of `flowtrain.workloads.PRESETS`.
        samples: Number of samples.
        seed: Seed of sizes and contents.
        scale: Factor of all token counts.
        max_tokens: Maximum tokens of a sample; text beyond it is left out.
        sizes: Sizes of the model.

    Raises:
        ValueError: The preset does not exist, or the images of a sample exceed `max_tokens`.
    """
    workload = preset(name, samples, seed=seed)
    write_samples(
        folder,
        [
            (round((total - visual) * scale), round(visual * scale) or min(1, visual))
            for total, visual in zip(
                workload.tokens.tolist(), workload.visual_tokens.tolist(), strict=True
            )
        ],
        seed=seed,
        max_tokens=max_tokens,
        sizes=sizes,
    )


def write_samples(
    folder: Path,
    tokens: Sequence[tuple[int, int]],
    *,
    seed: int,
    max_tokens: int,
    sizes: TinyModel | None = None,
    images: Images = TINY_IMAGES,
) -> None:
    """Write `train.jsonl`, its images, and the folder `model`; equal for equal arguments.

    Samples have random digits as question and as answer, half of the text each.

    Args:
        folder: Folder to write, created if it does not exist.
        tokens: About how many text tokens and image tokens each sample has.
        seed: Seed of the contents.
        max_tokens: Maximum tokens of a sample; text beyond it is left out.
        sizes: Sizes of the model.
        images: What its images are.

    Raises:
        ValueError: The images of a sample exceed `max_tokens`.
    """
    generator = np.random.default_rng(seed)
    folder.joinpath("images").mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (wanted, visual) in enumerate(tokens):
        shapes = image_shapes(visual, images.max_tokens) if visual else []
        paths = []
        for at, size in enumerate(shapes):
            written = images.write(folder / f"images/{number:06d}-{at:03d}", size, generator)
            paths.append(f"images/{written.name}")
        fixed = _TURNS + sum(rows * columns + _IMAGE for rows, columns in shapes)
        if fixed + 2 > max_tokens:
            raise ValueError(
                f"sample {number}: its images take {fixed} of max_tokens={max_tokens}; give it "
                "fewer (lower the scale of a preset), or raise max_tokens"
            )
        text = min(max(2, wanted - _TURNS - _IMAGE * len(shapes)), max_tokens - fixed)
        digits = "".join(map(str, generator.integers(0, 10, text).tolist()))
        lines.append(
            _sample("<image>" * len(paths) + digits[text // 2 :], digits[: text // 2], paths)
        )
    folder.joinpath("train.jsonl").write_text("".join(lines))
    write_tiny_model(folder / "model", sizes)


def image_shapes(tokens: int, max_tokens: int = TINY_IMAGES.max_tokens) -> list[tuple[int, int]]:
    """Rows and columns, in tokens, of nearly square images with about `tokens` tokens in all."""
    count = max(1, math.ceil(tokens / max_tokens))
    each = max(1, round(tokens / count))
    rows = max(1, math.isqrt(each))
    return [(rows, round(each / rows))] * count


def _sample(question: str, answer: str, images: list[str]) -> str:
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
    ]
    return json.dumps({"messages": messages, "images": images}) + "\n"
