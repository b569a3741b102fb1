"""Configuration of a run: a tree of frozen dataclasses, for YAML and for Python."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from flowtrain.config.layout import RankLayout

Dtype = Literal["float32", "float64", "bfloat16"]
Mode = Literal["frozen", "strict", "bounded"]
LayoutKind = Literal["auto", "colocated", "decoupled"]
Part = Literal["encoder", "projector", "backbone"]


class ConfigError(ValueError):
    """A configuration field has an unusable value; the message names the field."""


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


def _positive(**fields: float) -> None:
    for name, value in fields.items():
        _require(
            0 < value < math.inf,
            f"{name.replace('__', '.')}={value}: it must be greater than 0, and finite",
        )


def _not_negative(**fields: float) -> None:
    for name, value in fields.items():
        _require(
            0 <= value < math.inf,
            f"{name.replace('__', '.')}={value}: it must be 0 or more, and finite",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Which model is trained, and with which dtype and device."""

    path: Path | None = None
    """Local Hugging Face folder with weights, tokenizer and processor."""
    config: Path | None = None
    """Local Hugging Face folder without weights; they are initialized from `train.seed`."""
    dtype: Dtype = "float32"
    """Dtype of weights, activations and optimizer state."""
    freeze: tuple[Part, ...] = ()
    """Parts that do not train: the vision tower (`encoder`), the `projector` from its features to
    embeddings, and the language model (`backbone`). `flow.mode: frozen` freezes the encoder as
    well."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of every rank: `cpu`, or `cuda` with one device per rank, by local rank."""

    def __post_init__(self) -> None:
        _require(
            (self.path is None) != (self.config is None),
            f"model.path={self.path}, model.config={self.config}: give exactly one of the two: "
            "path is a folder with weights, config one without",
        )

    @property
    def folder(self) -> Path:
        """The Hugging Face folder, from `path` or `config`."""
        folder = self.path or self.config
        assert folder is not None
        return folder


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Where samples come from, and what to do with unusable ones."""

    path: Path | None = None
    """Samples in the conversation format: a `.jsonl` file with one object per line, a `.json` file
    with an array of objects, a `.parquet` file with one row per sample, or a folder written by
    `save_to_disk` of Hugging Face datasets."""
    dataset: str | None = None
    """Function that returns the samples, as `package.module:make`; exclusive with `path`. It takes
    no arguments and returns a map-style data set, whose items are dictionaries like the objects of
    a `.jsonl` file."""
    image_root: Path | None = None
    """Base folder of relative image paths; by default the folder that contains `path`. Without
    `path` there is no default."""
    workers: int = 1
    """Reader processes per rank; with 0 a thread of the rank reads, which slows its computation."""
    shuffle: bool = True
    """Shuffle each epoch, seeded by `train.seed`; otherwise use the order of the file."""
    bad_image: Literal["error", "skip"] = "error"
    """What to do with an image file that cannot be used. `error` ends the run. `skip` encodes zeros
    of the size in the image's header, or of the smallest image if there is no header, and masks
    and counts the sample."""
    oversize: Literal["error", "drop", "truncate"] = "error"
    """What to do with a sample longer than `train.microbatch_tokens`. `error` ends the run. `drop`
    leaves the sample out. `truncate` keeps its first tokens and the images that fit completely,
    and drops the sample if no target is left. Dropped and truncated samples are counted."""

    min_pixels: int | None = None
    """Pixels below which an image is enlarged; null takes the limit of the model's processor. Only
    Qwen-VL scales images by limits."""
    max_pixels: int | None = None
    """Pixels above which an image is reduced; null takes the limit of the model's processor."""

    def __post_init__(self) -> None:
        _require(
            (self.path is None) != (self.dataset is None),
            f"data.path={self.path}, data.dataset={self.dataset}: give exactly one of the two: "
            "path is a file or folder, dataset a Python function as package.module:make",
        )
        if self.dataset is not None:
            module, colon, name = self.dataset.partition(":")
            _require(
                bool(colon) and all(map(str.isidentifier, [*module.split("."), name])),
                f"data.dataset={self.dataset}: write package.module:make, where make is a function "
                "of the module",
            )
        _not_negative(data__workers=self.workers)
        given = {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels}
        _positive(**{f"data__{name}": value for name, value in given.items() if value is not None})

    @property
    def name(self) -> str:
        """Path or import path of the data set, for messages."""
        return str(self.path) if self.path is not None else f"data.dataset={self.dataset}"

    @property
    def root(self) -> Path | None:
        """Folder that relative image paths start from; None if there is none."""
        if self.image_root is not None or self.path is None:
            return self.image_root
        return self.path.parent


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
            _positive(optim__groups__lr=self.lr)
        if self.weight_decay is not None:
            _not_negative(optim__groups__weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """Optimizer, schedule and clipping, as in a plain PyTorch loop."""

    name: Literal["adamw", "sgd"] = "adamw"
    """`torch.optim.AdamW` or `torch.optim.SGD`."""
    lr: float = 1e-4
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's moments."""
    eps: float = 1e-8
    """Term added to AdamW's denominator."""
    weight_decay: float = 0.0
    """Weight decay of matrices. Norms, biases and other vectors have none, unless `decay_vectors`
    is set."""
    decay_vectors: bool = False
    """Whether parameters of fewer than two dimensions have weight decay as well."""
    groups: tuple[ParameterGroup, ...] = ()
    """Parameters with a learning rate or weight decay of their own, or that do not train."""
    momentum: float = 0.0
    """SGD momentum."""
    schedule: Literal["constant", "linear", "cosine", "onecycle"] = "constant"
    """Shape of the learning rate over `train.steps`."""
    min_lr_ratio: float = 0.0
    """Learning rate after the last step of `linear` and `cosine`, divided by `lr`."""
    warmup_steps: int = 0
    """Steps of linear warm-up; must be 0 for `onecycle`, which has its own."""
    clip_norm: float | None = 1.0
    """Maximum gradient norm over both modules; null disables clipping."""

    def __post_init__(self) -> None:
        _positive(optim__lr=self.lr, optim__eps=self.eps)
        _not_negative(
            optim__weight_decay=self.weight_decay,
            optim__momentum=self.momentum,
            optim__warmup_steps=self.warmup_steps,
        )
        _require(
            all(0 <= beta < 1 for beta in self.betas),
            f"optim.betas={list(self.betas)}: each must be at least 0 and less than 1",
        )
        _require(
            self.clip_norm is None or self.clip_norm > 0,
            f"optim.clip_norm={self.clip_norm}: give a number greater than 0, or null",
        )
        _require(
            0 <= self.min_lr_ratio <= 1,
            f"optim.min_lr_ratio={self.min_lr_ratio}: it must be from 0 to 1",
        )
        _require(
            self.schedule in ("linear", "cosine") or self.min_lr_ratio == 0,
            f"optim.min_lr_ratio={self.min_lr_ratio} with optim.schedule={self.schedule}: only "
            "linear and cosine take it; choose one of them, or set it to 0",
        )
        _require(
            self.schedule != "onecycle" or self.warmup_steps == 0,
            f"optim.warmup_steps={self.warmup_steps}: onecycle has its own warm-up; set it to 0",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Number, size and seed of the steps."""

    steps: int = 0
    """Optimizer steps of the whole run; 0 takes `epochs`."""
    epochs: float = 0.0
    """Epochs of the whole run, in place of `steps`: as many steps as draw so many samples, rounded
    up. Dropped samples are replaced by those of the next epoch."""
    global_batch: int = 32
    """Samples per step, over all ranks."""
    microbatch_tokens: int = 4096
    """Maximum tokens per packed microbatch, and so per sample."""
    seed: int = 0
    """Seed of initial weights, data order and dropout."""
    nonfinite: Literal["abort", "skip"] = "abort"
    """What to do with a step whose loss or gradient is not finite."""
    threads: int = 0
    """Torch threads per rank; 0 divides the host's cores among the ranks."""

    def __post_init__(self) -> None:
        _not_negative(train__steps=self.steps, train__epochs=self.epochs)
        _require(
            (self.steps == 0) != (self.epochs == 0),
            f"train.steps={self.steps}, train.epochs={self.epochs:g}: give exactly one of the two",
        )
        _positive(
            train__global_batch=self.global_batch,
            train__microbatch_tokens=self.microbatch_tokens,
        )
        _not_negative(train__threads=self.threads)
        _require(
            0 <= self.seed < 1 << 63,
            f"train.seed={self.seed}: it must be at least 0 and less than 2^63",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowConfig:
    """Which ranks hold which module, and how the modules are coupled."""

    layout: LayoutKind = "auto"
    """`colocated`: each of `ranks` ranks holds both modules. `decoupled`: `encoder_ranks` ranks
    hold the encoder, and `backbone_ranks` others the backbone. `auto`: the kind whose numbers are
    given; without any, kind and numbers are chosen at the start of the run."""
    ranks: int | None = None
    """Ranks of a colocated run."""
    encoder_ranks: int | None = None
    """Encoder ranks of a decoupled run; 1 if only `backbone_ranks` is given."""
    backbone_ranks: int | None = None
    """Backbone data-parallel ranks of a decoupled run; 1 if only `encoder_ranks` is given."""
    mode: Mode = "strict"
    """How the encoder trains. `strict`: with the numbers of a plain loop. `bounded`: with weights
    up to `staleness` steps old. `frozen`: not at all, so that it can run ahead; a projector that
    trains is computed with the backbone then."""
    staleness: int = 0
    """Maximum age in steps of the encoder's weights in `bounded`."""
    item_tokens: int = 1024
    """Maximum image tokens encoded at once on an encoder rank, counted as rows that cross the pool;
    a larger image is encoded alone."""
    plan_ahead: int = 4
    """Number of steps planned ahead of the current step."""
    port: int = 0
    """Port of the job's store on this host; 0 lets the system choose."""
    timeout_s: float = 120.0
    """Timeout for a silent rank. Each rank's process beats about once a second, also in a long
    step, checkpoint or compilation; slow ranks are waited for. The run ends if for this long a rank
    has not beaten, all ranks have waited for each other, or a rank's readers have finished no read;
    the start of its first reader does not count. Ranks that die are detected within seconds. A rank
    that hangs in a call which releases Python's lock is not detected."""
    start_timeout_s: float = 300.0
    """Timeout for the processes of all ranks to join the job, before they load their models."""

    def __post_init__(self) -> None:
        self._check_layout()
        _positive(
            flow__item_tokens=self.item_tokens,
            flow__plan_ahead=self.plan_ahead,
            flow__timeout_s=self.timeout_s,
            flow__start_timeout_s=self.start_timeout_s,
        )
        _not_negative(flow__staleness=self.staleness)
        _require(
            0 <= self.port < 1 << 16,
            f"flow.port={self.port}: it must be at least 0 and less than 65536",
        )
        _require(
            (self.mode == "bounded") == (self.staleness > 0),
            f"flow.staleness={self.staleness} with flow.mode={self.mode}: bounded needs a "
            "staleness of at least 1, the other modes need 0",
        )
        _require(
            self.staleness < self.plan_ahead,
            f"flow.staleness={self.staleness}: it must be less than "
            f"flow.plan_ahead={self.plan_ahead}; raise flow.plan_ahead",
        )

    def _check_layout(self) -> None:
        given = {
            name: value
            for name in ("ranks", "encoder_ranks", "backbone_ranks")
            if (value := getattr(self, name)) is not None
        }
        _positive(**{f"flow__{name}": value for name, value in given.items()})
        shown = ", ".join(f"flow.{name}={value}" for name, value in given.items())
        other = {"colocated": {"encoder_ranks", "backbone_ranks"}, "decoupled": {"ranks"}}
        _require(
            not (given.keys() & other.get(self.layout, set()))
            and not ("ranks" in given and len(given) > 1),
            f"flow.layout={self.layout} with {shown}: flow.ranks is for colocated runs, "
            "flow.encoder_ranks and flow.backbone_ranks are for decoupled ones; give those of one "
            "kind",
        )
        _require(
            self.layout != "colocated" or self.ranks is not None,
            "flow.layout=colocated without flow.ranks: give the number of ranks, or set "
            "flow.layout=auto",
        )

    @property
    def rank_layout(self) -> RankLayout | None:
        """The layout that these fields give; None if it is chosen at the start of the run."""
        if self.ranks is not None:
            return RankLayout.colocated_on(self.ranks)
        if self.layout == "auto" and self.encoder_ranks is None and self.backbone_ranks is None:
            return None
        return RankLayout.decoupled(self.encoder_ranks or 1, self.backbone_ranks or 1)

    @property
    def chosen(self) -> RankLayout:
        """The layout of a run that has started.

        Raises:
            ConfigError: It has not been chosen yet.
        """
        layout = self.rank_layout
        if layout is None:
            raise ConfigError("flow.layout=auto: the layout is chosen when a run starts")
        return layout

    def with_layout(self, layout: RankLayout) -> FlowConfig:
        """These fields with a layout in numbers."""
        if layout.colocated:
            return replace(
                self,
                layout="colocated",
                ranks=layout.backbone_ranks,
                encoder_ranks=None,
                backbone_ranks=None,
            )
        return replace(
            self,
            layout="decoupled",
            ranks=None,
            encoder_ranks=layout.encoder_ranks,
            backbone_ranks=layout.backbone_ranks,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolConfig:
    """Size of the pool."""

    slab_bytes: int = 1 << 20
    """Size of a slab; a record is split into as many as it needs."""
    bytes: int | None = None
    """Size of the pool over all ranks; null means `scale` times the minimum that the plans need."""
    max_cells: int = 4096
    """Maximum slabs of the pool over all ranks. Each slab has a cell in the control file, which has
    further cells for segments that are being replaced."""
    scale: float = 2.0
    """Size of the pool as a multiple of the minimum, if `bytes` is null."""

    def __post_init__(self) -> None:
        _require(
            self.slab_bytes >= 4096,
            f"pool.slab_bytes={self.slab_bytes}: it must be at least 4096",
        )
        _require(
            1 <= self.scale < math.inf,
            f"pool.scale={self.scale}: it must be at least 1, and finite",
        )
        _positive(pool__max_cells=self.max_cells)
        if self.bytes is not None:
            _positive(pool__bytes=self.bytes)
            slabs = self.bytes // self.slab_bytes
            _require(
                slabs <= self.max_cells,
                f"pool.bytes={self.bytes} with pool.slab_bytes={self.slab_bytes}: {slabs} slabs "
                f"are more than pool.max_cells={self.max_cells}; raise pool.max_cells or "
                "pool.slab_bytes",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """When the run is saved, and how many checkpoints are kept."""

    every: int = 0
    """Steps between checkpoints; 0 saves only at the end."""
    keep: int = 2
    """Number of checkpoints to keep; the oldest are deleted."""

    def __post_init__(self) -> None:
        _not_negative(checkpoint__every=self.every)
        _positive(checkpoint__keep=self.keep)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackConfig:
    """Trackers of experiments that get the figures of each step, besides the logs of the run."""

    tensorboard: bool = False
    """Whether to write TensorBoard's event files to `RUN/tensorboard`."""
    wandb: str | None = None
    """W&B project to log to; null logs to none. Its own environment variables set the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DebugConfig:
    """Faults and delays for tests, off by default."""

    delay_ms: float = 0.0
    """Maximum random delay before each action of a rank."""
    fault: str | None = None
    """Function that each rank calls before it starts, as `module:function`, or as
    `module:function:RANK` for one rank only. Tests inject faults with it."""

    def __post_init__(self) -> None:
        _not_negative(debug__delay_ms=self.delay_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A whole training run."""

    run: Path
    """Output folder: metrics, logs, plans, checkpoints and `final`."""
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    optim: OptimConfig = field(default_factory=OptimConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    def __post_init__(self) -> None:
        _require(
            "encoder" not in self.model.freeze or self.flow.mode == "frozen",
            f"model.freeze has encoder with flow.mode={self.flow.mode}: set flow.mode to frozen",
        )
        _require(
            bool(self.trained_parts),
            f"model.freeze=[{', '.join(self.model.freeze)}] with flow.mode={self.flow.mode}: "
            "nothing would train; remove a part from model.freeze",
        )
        _require(
            self.train.steps == 0 or self.optim.warmup_steps < self.train.steps,
            f"optim.warmup_steps={self.optim.warmup_steps}: it must be less than "
            f"train.steps={self.train.steps}",
        )

    @property
    def trained_parts(self) -> tuple[Part, ...]:
        """The parts of the model that train."""
        frozen = {*self.model.freeze, *(["encoder"] if self.flow.mode == "frozen" else [])}
        parts: tuple[Part, ...] = ("encoder", "projector", "backbone")
        return tuple(part for part in parts if part not in frozen)

    @property
    def projector_side(self) -> Literal["encoder", "backbone"]:
        """The module with which the projector is computed.

        Nothing in front of the cut trains in `frozen`, so that a projector that trains is behind
        it.
        """
        trains = "projector" in self.trained_parts
        return "backbone" if self.flow.mode == "frozen" and trains else "encoder"
