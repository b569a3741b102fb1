"""Strips of handwritten digits: a small data set of real images with a heavy tail of lengths."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flowtrain import progress
from flowtrain.models.tiny import TinyModel, write_tiny_model

_LONGEST = 24
_QUESTION = "Read the digits."
_SIDE = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class DigitsSummary:
    """Number of samples and digits in the files."""

    train: int
    heldout: int
    train_digits: int
    heldout_digits: int


def write_digits(
    folder: Path,
    *,
    train: int = 12_000,
    heldout: int = 400,
    seed: int = 0,
    text_only: float = 0.0,
    multi_image: float = 0.0,
    sizes: TinyModel | None = None,
    family: str = "qwen3_vl",
) -> DigitsSummary:
    """Write `train.jsonl`, `heldout.jsonl`, their images, and the folder `model`.

    A strip is a row of 1 to 24 of scikit-learn's 8 x 8 digits at their own resolution. Its length
    is lognormal, so that a few strips are much longer than most. No digit image is in both files.

    Args:
        folder: Folder to write, created if it does not exist.
        train: Number of training samples.
        heldout: Number of held-out strips.
        seed: Seed of all random choices.
        text_only: Share of training samples without an image, which ask for a sum.
        multi_image: Share of training samples with two or three strips.
        sizes: Sizes of the model.
        family: `model_type` of the model; see `flowtrain.models.tiny`.

    Raises:
        ValueError: A count or a share is out of range.
    """
    if train < 1 or heldout < 0:
        raise ValueError(
            f"train={train}, heldout={heldout}: train must be 1 or more, heldout 0 or more"
        )
    if min(text_only, multi_image) < 0 or text_only + multi_image > 1:
        raise ValueError(
            f"text_only={text_only}, multi_image={multi_image}: they must be at least 0, and their "
            "sum at most 1"
        )
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(pixels))
    cut = len(pixels) * 4 // 5
    counts = {}
    for name, number, images in (("train", train, order[:cut]), ("heldout", heldout, order[cut:])):
        writer = _Writer(folder, name, pixels, digits.target, images, generator)
        shares = (text_only, multi_image) if name == "train" else (0.0, 0.0)
        counts[name] = writer.write(number, *shares)
    progress.show("writing a tiny model")
    write_tiny_model(folder / "model", sizes, family=family)
    return DigitsSummary(
        train=train, heldout=heldout, train_digits=counts["train"], heldout_digits=counts["heldout"]
    )


class _Writer:
    def __init__(
        self,
        folder: Path,
        name: str,
        pixels: NDArray[np.uint8],
        labels: NDArray[np.int64],
        images: NDArray[np.int64],
        generator: np.random.Generator,
    ) -> None:
        self._folder = folder
        self._name = name
        self._pixels = pixels
        self._labels = labels
        self._images = images
        self._generator = generator
        self._strips = 0
        folder.joinpath("images", name).mkdir(parents=True, exist_ok=True)

    def write(self, number: int, text_only: float, multi_image: float) -> int:
        """Write `number` samples and return the number of digits in them."""
        digits = 0
        with self._folder.joinpath(f"{self._name}.jsonl").open("w") as file:
            for _ in progress.over(f"writing {self._name} samples", range(number)):
                kind = self._generator.random()
                if kind < text_only:
                    sample = self._sum()
                else:
                    strips = int(self._generator.integers(2, 4))
                    sample = self._reading(strips if kind < text_only + multi_image else 1)
                    digits += sum(c.isdigit() for c in sample["messages"][-1]["content"])
                file.write(json.dumps(sample) + "\n")
        return digits

    def _reading(self, strips: int) -> dict[str, Any]:
        paths, answers = zip(*(self._strip() for _ in range(strips)), strict=True)
        return _sample("<image>" * strips + _QUESTION, " ".join(answers), list(paths))

    def _sum(self) -> dict[str, Any]:
        a, b = self._generator.integers(0, 50, size=2)
        return _sample(f"What is {a} plus {b}?", str(a + b), [])

    def _strip(self) -> tuple[str, str]:
        length = int(np.clip(np.round(self._generator.lognormal(1.5, 0.75)), 1, _LONGEST))
        chosen = self._generator.choice(self._images, size=length)
        path = f"images/{self._name}/{self._strips:06d}.png"
        self._strips += 1
        strip = np.concatenate(list(self._pixels[chosen]), axis=1)
        assert strip.shape == (_SIDE, _SIDE * length)
        Image.fromarray(strip).save(self._folder / path)
        return path, "".join(str(label) for label in self._labels[chosen])


def _sample(question: str, answer: str, images: list[str]) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ],
        "images": images,
    }
