"""Configuration of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flowtrain.config.checks import require
from flowtrain.config.dtypes import ITEMSIZES, Dtype

Part = Literal["encoder", "projector", "backbone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Which model is trained, and with which dtype and device."""

    path: Path | None = None
    """Local Hugging Face folder with weights, tokenizer and processor."""
    config: Path | None = None
    """Local Hugging Face folder without weights; they are initialized from `train.seed`."""
    dtype: Dtype = "float32"
    """Dtype in which weights are stored: that of the optimizer's step and moments, of gradients, of
    checkpoints and of `RUN/final`."""
    compute_dtype: Dtype | None = None
    """Dtype of weights and activations in the passes; null takes `dtype`. `dtype: float32` with
    `compute_dtype: bfloat16` is mixed precision: the stored weights are float32 master weights.
    Weights that do not train are in this dtype alone."""
    freeze: tuple[Part, ...] = ()
    """Parts that do not train: the vision tower (`encoder`), the `projector` from its features to
    embeddings, and the language model (`backbone`). `flow.mode: frozen` freezes the encoder as
    well."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of every rank: `cpu`, or `cuda` with one device per rank, by local rank."""
    compile: bool = False
    """Whether torch.compile compiles the blocks of the model in the first steps. Their attention is
    compiled with them on a GPU in half precision, unless `recompute` is `selective`. A process that
    compiles for the CPU needs a C++ compiler."""

    def __post_init__(self) -> None:
        require(
            (self.path is None) != (self.config is None),
            f"model.path={self.path}, model.config={self.config}: give exactly one of the two: "
            "path is a folder with weights, config one without",
        )
        require(
            self.dtype != "bfloat16" or self.compute_dtype is not None,
            "model.dtype=bfloat16: bfloat16 weights lose small updates; set model.dtype=float32 "
            "and model.compute_dtype=bfloat16 for float32 master weights, or give "
            "model.compute_dtype=bfloat16 too to train without them",
        )
        require(
            ITEMSIZES[self.pass_dtype] <= ITEMSIZES[self.dtype],
            f"model.compute_dtype={self.compute_dtype} with model.dtype={self.dtype}: the passes "
            "cannot have wider weights than those that are stored; set "
            f"model.dtype={self.compute_dtype}, or model.compute_dtype={self.dtype}",
        )

    @property
    def pass_dtype(self) -> Dtype:
        """Dtype of weights and activations in the passes."""
        return self.compute_dtype or self.dtype

    @property
    def folder(self) -> Path:
        """The Hugging Face folder, from `path` or `config`."""
        folder = self.path or self.config
        assert folder is not None
        return folder
