"""Configuration of the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flowtrain.config.checks import not_negative, positive, require
from flowtrain.config.dtypes import Dtype

_BETAS, _EPS = (0.9, 0.999), 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterGroup:
    """Parameters that train otherwise than the rest."""

    match: str
    """Glob pattern of parameter names, such as `model.visual.*`. A parameter belongs to the first
    group that matches it."""
    lr: float | None = None
    """Peak learning rate; null means `optim.lr`."""
    weight_decay: float | None = None
    """Weight decay, also of vectors; null means that of the other parameters."""
    train: bool = True
    """Whether the parameters train."""

    def __post_init__(self) -> None:
        if self.lr is not None:
            positive(optim__groups__lr=self.lr)
        if self.weight_decay is not None:
            not_negative(optim__groups__weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """Optimizer, schedule and clipping, as in a plain PyTorch loop."""

    name: Literal["adamw", "sgd"] = "adamw"
    """`torch.optim.AdamW` or `torch.optim.SGD`."""
    lr: float = 1e-4
    """Peak learning rate."""
    betas: tuple[float, float] = _BETAS
    """Decay rates of AdamW's moments."""
    eps: float = _EPS
    """Term added to AdamW's denominator."""
    weight_decay: float = 0.0
    """Weight decay of matrices. Norms, biases and other vectors have none, unless `decay_vectors`
    is set."""
    decay_vectors: bool = False
    """Whether parameters of fewer than two dimensions have weight decay as well."""
    groups: tuple[ParameterGroup, ...] = ()
    """Parameters with a learning rate or weight decay of their own, or that do not train."""
    reduce_dtype: Dtype | None = None
    """Dtype in which gradients are summed over the ranks; null takes `model.dtype`."""
    momentum: float = 0.0
    """SGD momentum."""
    offload: bool = False
    """Whether sharded modules that train keep weights, gradients and moments in host memory between
    passes, and step there. Weights are copied to the device whenever they are gathered, gradients
    to the host whenever they are summed."""
    schedule: Literal["constant", "linear", "cosine", "onecycle"] = "constant"
    """Shape of the learning rate over `schedule_steps`."""
    schedule_steps: int | None = None
    """Steps of the whole schedule; null means `train.steps`. More than `train.steps` trains the
    first steps of a longer run, with its learning rates."""
    min_lr_ratio: float = 0.0
    """Learning rate after the last step of `linear` and `cosine`, divided by `lr`."""
    warmup_steps: int = 0
    """Steps of linear warm-up; must be 0 for `onecycle`, which has its own."""
    clip_norm: float | None = 1.0
    """Maximum gradient norm over both modules; null disables clipping."""

    def __post_init__(self) -> None:
        positive(optim__lr=self.lr, optim__eps=self.eps)
        not_negative(
            optim__weight_decay=self.weight_decay,
            optim__momentum=self.momentum,
            optim__warmup_steps=self.warmup_steps,
        )
        require(
            self.name == "sgd" or self.momentum == 0,
            f"optim.momentum={self.momentum} with optim.name={self.name}: AdamW has optim.betas; "
            "set optim.name to sgd, or leave optim.momentum out",
        )
        for name, value, default in (
            ("betas", list(self.betas), list(_BETAS)),
            ("eps", self.eps, _EPS),
        ):
            require(
                self.name == "adamw" or value == default,
                f"optim.{name}={value} with optim.name={self.name}: only AdamW has it; leave "
                f"optim.{name} out",
            )
        if self.schedule_steps is not None:
            positive(optim__schedule_steps=self.schedule_steps)
        require(
            all(0 <= beta < 1 for beta in self.betas),
            f"optim.betas={list(self.betas)}: each must be at least 0 and less than 1",
        )
        require(
            self.clip_norm is None or self.clip_norm > 0,
            f"optim.clip_norm={self.clip_norm}: give a number greater than 0, or null",
        )
        require(
            0 <= self.min_lr_ratio <= 1,
            f"optim.min_lr_ratio={self.min_lr_ratio}: it must be from 0 to 1",
        )
        require(
            self.schedule in ("linear", "cosine") or self.min_lr_ratio == 0,
            f"optim.min_lr_ratio={self.min_lr_ratio} with optim.schedule={self.schedule}: only "
            "linear and cosine take it; choose one of them, or set it to 0",
        )
        require(
            self.schedule != "onecycle" or self.warmup_steps == 0,
            f"optim.warmup_steps={self.warmup_steps}: onecycle has its own warm-up; set it to 0",
        )
