"""Samples of data sets that runs read, for training loops of one's own."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from flowtrain.config.data import DataConfig
from flowtrain.config.tree import build
from flowtrain.cost.flops import Grid
from flowtrain.data import records
from flowtrain.data.errors import DataError
from flowtrain.data.pixel_maker import PixelMaker, SamplePixels
from flowtrain.data.sample_meta import SampleMeta
from flowtrain.data.samples import SampleReader
from flowtrain.data.text import CompactText, expand
from flowtrain.models.errors import ModelError
from flowtrain.models.registry import family_for

_TEXT = {"input_ids", "attention_mask", "mm_token_type_ids", "labels"}
_CPU: Any = {"dtype": torch.float32, "device": torch.device("cpu")}
# No sample is longer.
_NO_LIMIT = 1 << 62


class VlmSamples(Dataset[dict[str, torch.Tensor]]):
    """Samples of any file that a run reads, as the model's processor returns them.

        samples = VlmSamples("Qwen3-VL-8B-Instruct", "train.jsonl")
        loader = PackedLoader(
            samples, 8, True, max_tokens=8192, targets="labels", collate_fn=VlmCollator(folder)
        )

    They are read by the code of runs: formats, chat template and targets are those of docs/data.md,
    and each tensor is equal to that of the processor. `flowtrain data check` lists bad samples;
    here one is an error when it is read.

    An item has `input_ids`, `attention_mask` and `labels` of shape [1, tokens], -100 where a token
    is no target; `mm_token_type_ids` for families with positions in several axes; and the tensors
    of its images and videos, such as `pixel_values` and `image_grid_thw`.

    It can be pickled, for spawned workers. Each process opens the files for itself.

    Args:
        folder: Hugging Face folder of the model: configuration, tokenizer and processors.
        data: A path as for `data.path`, the fields of section `data`, or the section itself.

    Raises:
        ConfigError: A field of `data` is wrong.
        DataError: The data set or the model's folder cannot be used; or `data` names a stream or
            weights, or says to skip, drop or truncate samples.
    """

    def __init__(
        self,
        folder: Path | str,
        data: Path | str | Mapping[str, Any] | DataConfig,
    ) -> None:
        self._folder = Path(folder)
        self._data = _config(data)
        _check(self._data)
        dataset = records.Dataset(self._data)
        if dataset.is_stream:
            raise DataError(
                f"{self._data.name}: a stream has no numbered samples; write its records to a "
                ".jsonl file"
            )
        self._state = dataset.state
        self._size = len(dataset)
        self._columns: frozenset[str] | None = None
        # Of the process with this id, which others must not share: it has positions in open files.
        self._process = 0
        _ = self._reader  # Folder and files can be used.

    @property
    def data(self) -> DataConfig:
        """Where the samples are, as a run reads them."""
        return self._data

    def select_columns(self, names: str | Collection[str]) -> VlmSamples:
        """The same samples with these tensors alone.

        Images and videos are decoded only if the names have some of their tensors; otherwise their
        headers are read. `PackedLoader` reads sizes in this way.

        Args:
            names: Name or names of tensors.
        """
        names = [names] if isinstance(names, str) else names
        other = VlmSamples.__new__(VlmSamples)
        other.__dict__.update(self.__dict__, _columns=frozenset(names))
        return other

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        [sample] = self.__getitems__([index])
        return sample

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Samples, whose texts are read together."""
        calls = [(self._number(index),) for index in indices]
        return [self._sample(*each) for each in self._reader.meta_and_text_together(calls)]

    def __getstate__(self) -> dict[str, Any]:
        own = {"_opened", "_make", "_family"}
        return {n: value for n, value in self.__dict__.items() if n not in own} | {"_process": 0}

    @property
    def _reader(self) -> SampleReader:
        if self._process != os.getpid():
            family = family_for(self._folder)
            self._opened = SampleReader(self._folder, self._data, _NO_LIMIT, self._state)
            self._make = PixelMaker(family)
            self._family = family
            self._process = os.getpid()
        return self._opened

    def _number(self, index: int) -> int:
        try:
            index = operator.index(index)
        except TypeError as error:
            raise TypeError(
                f"{self._data.name}: sample {index!r}: give its number; several samples are those "
                "of torch.utils.data.Subset"
            ) from error
        number = index + self._size if index < 0 else index
        if not 0 <= number < self._size:
            raise IndexError(f"{self._data.name}: sample {index} of {self._size}")
        return number

    def _sample(self, meta: SampleMeta, text: CompactText) -> dict[str, torch.Tensor]:
        tokens = expand(text)
        sample = {
            "input_ids": torch.from_numpy(tokens.input_ids)[None],
            "attention_mask": torch.ones(1, len(tokens.input_ids), dtype=torch.long),
            "labels": torch.from_numpy(tokens.labels)[None],
        }
        if self._family.axes > 1:
            sample["mm_token_type_ids"] = torch.from_numpy(tokens.mm_token_type_ids)[None]
        if meta.grids and (self._columns is None or not self._columns <= _TEXT):
            sample |= self._visuals(meta)
        if self._columns is None:
            return sample
        return {name: tensor for name, tensor in sample.items() if name in self._columns}

    def _visuals(self, meta: SampleMeta) -> dict[str, torch.Tensor]:
        """Tensors of the images and videos of a sample."""
        seconds = meta.seconds or (0.0,) * len(meta.grids)
        read = [
            (self._reader.pixels(meta.index, number, grid), grid, second)
            for number, (grid, second) in enumerate(zip(meta.grids, seconds, strict=True))
        ]
        # A family without a token for videos takes them for images.
        apart = self._family.video_id != self._family.image_id
        images = [each for each in read if not (apart and each[2])]
        videos = [each for each in read if apart and each[2]]
        inputs: dict[str, torch.Tensor] = {}
        try:
            if images:
                grids, _, pixels = self._pixels(images)
                inputs |= self._make.images.sample_inputs(grids, pixels)
            if videos:
                inputs |= self._make.videos.sample_inputs(*self._pixels(videos))
        except ModelError as error:
            raise DataError(f"{self._reader.where(meta.index)}: {error}") from error
        return inputs

    def _pixels(
        self, visuals: Sequence[tuple[SamplePixels, Grid, float]]
    ) -> tuple[list[Grid], list[float], torch.Tensor]:
        """Grids, seconds and joined pixels."""
        values, grids, seconds = (list(column) for column in zip(*visuals, strict=True))
        return grids, seconds, self._make(values, grids, **_CPU)


def _config(data: Path | str | Mapping[str, Any] | DataConfig) -> DataConfig:
    if isinstance(data, DataConfig):
        return data
    if isinstance(data, Mapping):
        return build(DataConfig, data, source="data")
    return DataConfig(path=Path(data))


def _check(data: DataConfig) -> None:
    """Refuse what a data set with a fixed number of samples cannot do."""
    if data.bad_image != "error" or data.oversize != "error":
        raise DataError(
            f"data.bad_image={data.bad_image}, data.oversize={data.oversize}: VlmSamples has every "
            "sample, and whole; set both to error, drop the lines that `flowtrain data check` "
            'lists, and limit lengths in the loader, such as by PackedLoader(oversize="drop")'
        )
    if weighted := [source for source in data.all_sources if source.weight != 1]:
        raise DataError(
            f"{weighted[0].name}: weight={weighted[0].weight:g}: VlmSamples has each sample once; "
            "leave out the weights, and give them to a sampler of torch"
        )
