"""A data set of outputs of a model's processor, named as `processed_samples:make`."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from reference_loop import Samples
from torch.utils.data import Dataset

MODEL, DATA = "PROCESSED_SAMPLES_MODEL", "PROCESSED_SAMPLES_DATA"
"""Environment variables with the folder of the model and the file of the samples."""


class Processed(Dataset[dict[str, torch.Tensor]]):
    """Samples of a JSONL file, as the model's processor of transformers returns them."""

    def __init__(self, data: Path, model: Path) -> None:
        self._samples = Samples(data, model)
        self._length = len(data.read_text().splitlines())

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._samples[index]


def make() -> Processed:
    """The samples that the environment names."""
    return Processed(Path(os.environ[DATA]), Path(os.environ[MODEL]))
