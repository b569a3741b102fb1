"""Configuration of a run: a tree of frozen dataclasses, for YAML and for Python."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from flowtrain.config.checks import not_negative, positive, require
from flowtrain.config.dtypes import ITEMSIZES, Dtype
from flowtrain.config.evaluation import EvalConfig
from flowtrain.config.flow import ITEM_TOKENS, FlowConfig
from flowtrain.config.layout import MODULES, ModuleName
from flowtrain.config.lora import LoraConfig
from flowtrain.config.optim import OptimConfig
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.config.sources import SourceConfig, check_import_path, check_sources

Part = Literal["encoder", "projector", "backbone"]
Tier = Literal["host", "auto", "device", "fake"]

LOGIT_BYTES = 1 << 28
"""Default of `train.logit_bytes`."""


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
    """Whether torch.compile compiles the blocks of the model, but for their attention, in the first
    steps. A process that compiles for the CPU needs a C++ compiler."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Where samples come from, and what to do with unusable ones."""

    path: Path | None = None
    """Samples in the conversation format: a `.jsonl` file with one object per line, a `.json` file
    with an array of objects, a `.parquet` file with one row per sample, a pattern of such files
    (`shards/*.jsonl`), or a folder written by `save_to_disk` of Hugging Face datasets."""
    dataset: str | None = None
    """Function that returns the samples, as `package.module:make`; exclusive with `path`. It takes
    no arguments and returns a map-style data set, or an iterable one, which is read as a stream.
    Items are dictionaries like the objects of a `.jsonl` file."""
    sources: tuple[SourceConfig, ...] = ()
    """Several data sets with weights, in place of `path` or `dataset`."""
    image_root: Path | None = None
    """Base folder of relative image paths; by default the folder that contains `path`. Without
    `path` there is no default."""
    ignore: tuple[str, ...] = ()
    """Names of fields that are read as if no record, turn, part or image had them. A field that is
    not used and not named here is an error, since its content would be lost."""
    workers: int = 1
    """Worker processes per rank; with 0 a thread of the rank reads, which slows its computation."""
    shuffle: bool = True
    """Shuffle each epoch, seeded by `train.seed`; otherwise use the order of the file. A stream
    needs `false`."""
    bad_image: Literal["error", "skip"] = "error"
    """What to do with an image or video file that cannot be used. `error` ends the run. `skip`
    encodes zeros of the size in the file's header, or of the smallest image or video if there is no
    header, and masks and counts the sample."""
    oversize: Literal["error", "drop", "truncate"] = "error"
    """What to do with a sample longer than `train.microbatch_tokens`. `error` ends the run. `drop`
    leaves the sample out. `truncate` keeps its first tokens and the images and videos that fit
    completely, and drops the sample if no target is left. Dropped and truncated samples are
    counted."""

    min_pixels: int | None = None
    """Pixels below which an image is enlarged; null takes the limit of the model's processor. Only
    Qwen-VL scales images by limits."""
    max_pixels: int | None = None
    """Pixels above which an image is reduced; null takes the limit of the model's processor."""
    video_fps: float | None = None
    """Frames that are taken of a second of a video; null takes what the model's processor says."""
    video_max_frames: int | None = None
    """Maximum frames that are taken of a video; null takes what the model's processor says."""
    video_max_pixels: int | None = None
    """Pixels above which the frames of a video are reduced; null takes the limit of the model's
    processor. Of all frames together for Qwen3-VL, of each frame for Qwen2.5-VL; the other families
    scale each frame to one size."""

    def __post_init__(self) -> None:
        require(
            [self.path, self.dataset, self.sources or None].count(None) == 2,
            f"data.path={self.path}, data.dataset={self.dataset}, "
            f"data.sources=[{', '.join(source.name for source in self.sources)}]: give exactly one "
            "of the three: path is a file or folder, dataset a Python function as "
            "package.module:make, sources a list of these with weights",
        )
        if self.dataset is not None:
            check_import_path("data.dataset", self.dataset)
        check_sources(self.sources)
        not_negative(data__workers=self.workers)
        given = {
            "min_pixels": self.min_pixels,
            "max_pixels": self.max_pixels,
            "video_fps": self.video_fps,
            "video_max_frames": self.video_max_frames,
            "video_max_pixels": self.video_max_pixels,
        }
        positive(**{f"data__{name}": value for name, value in given.items() if value is not None})

    @property
    def name(self) -> str:
        """Path or import path of the data set, for messages."""
        return "data.sources" if self.sources else self.all_sources[0].name

    @property
    def all_sources(self) -> tuple[SourceConfig, ...]:
        """The data sets of `sources`, or the only one, with their base folders of images."""
        sources = self.sources or (SourceConfig(path=self.path, dataset=self.dataset),)
        return tuple(
            replace(source, image_root=source.image_root or self.image_root) for source in sources
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
    logit_bytes: int = LOGIT_BYTES
    """Maximum bytes of the float32 logits that are held at once. A microbatch with more has its
    output head and cross entropy computed in chunks of target tokens, and once more in the backward
    pass."""
    seed: int = 0
    """Seed of initial weights, data order and dropout."""
    nonfinite: Literal["abort", "skip"] = "abort"
    """What to do with a step whose loss or gradient is not finite."""
    threads: int = 0
    """Torch threads per rank; 0 takes `OMP_NUM_THREADS`, or else divides the cores that affinity
    and cgroup allow among the ranks."""

    def __post_init__(self) -> None:
        not_negative(train__steps=self.steps, train__epochs=self.epochs)
        require(
            (self.steps == 0) != (self.epochs == 0),
            f"train.steps={self.steps}, train.epochs={self.epochs:g}: give exactly one of the two",
        )
        positive(
            train__global_batch=self.global_batch,
            train__microbatch_tokens=self.microbatch_tokens,
            train__logit_bytes=self.logit_bytes,
        )
        not_negative(train__threads=self.threads)
        require(
            0 <= self.seed < 1 << 63,
            f"train.seed={self.seed}: it must be at least 0 and less than 2^63",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolConfig:
    """Size of the pool, and what it holds."""

    slab_bytes: int = 1 << 20
    """Size of a slab; a record is split into as many as it needs."""
    bytes: int | None = None
    """Size of the pool over all ranks; null means `scale` times the minimum that the plans need, or
    for encoder ranks that come and go (`flow.elastic`) what `flow.plan_ahead` steps need, and at
    most a quarter of the free memory."""
    max_cells: int = 4096
    """Maximum slabs of the pool over all ranks. Each slab has a cell in the control file, which has
    further cells for segments that are being replaced."""
    scale: float = 2.0
    """Size of the pool as a multiple of the minimum, if `bytes` is null."""
    tier: Tier = "host"
    """Where rows lie: `host`, or the memory of the sending rank's `device`, in which streams write
    and read them and no rank waits for a copy. `auto` is `device` with `model.device: cuda`, except
    in runs whose encoder ranks come and go. `fake` is memory of the host that is handled as that of
    a device, for tests."""
    dtype: Dtype | None = None
    """Dtype of the rows that cross the pool, and of their gradients; null takes
    `model.compute_dtype`."""

    def __post_init__(self) -> None:
        require(
            self.slab_bytes >= 4096,
            f"pool.slab_bytes={self.slab_bytes}: it must be at least 4096",
        )
        require(
            1 <= self.scale < math.inf,
            f"pool.scale={self.scale}: it must be at least 1, and finite",
        )
        positive(pool__max_cells=self.max_cells)
        if self.bytes is not None:
            positive(pool__bytes=self.bytes)
            slabs = self.bytes // self.slab_bytes
            require(
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
    background: bool = False
    """Whether ranks copy what a checkpoint has to host memory, and write it while the run goes on.
    It takes that memory for the rest of the run, and the checkpoint is valid when all have
    written."""

    def __post_init__(self) -> None:
        not_negative(checkpoint__every=self.every)
        positive(checkpoint__keep=self.keep)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackConfig:
    """Trackers of experiments that get the figures of each step, besides the logs of the run."""

    tensorboard: bool = False
    """Whether to write TensorBoard's event files to `RUN/tensorboard`."""
    wandb: str | None = None
    """W&B project to log to; null logs to none. Its own environment variables set the rest."""
    profile_start: int | None = None
    """First step, from 0, that torch's profiler traces on every rank, into `RUN/profile`; null
    traces none."""
    profile_steps: int = 3
    """Number of steps that the profiler traces."""
    event_steps: int = 1000
    """Number of the last steps whose events are kept in `RUN/events`; of earlier ones only sums
    are."""

    def __post_init__(self) -> None:
        not_negative(track__profile_start=self.profile_start or 0)
        positive(track__profile_steps=self.profile_steps, track__event_steps=self.event_steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class DebugConfig:
    """Faults and delays for tests, off by default."""

    delay_ms: float = 0.0
    """Maximum random delay before each action of a rank."""
    fault: str | None = None
    """Function that each rank calls before it starts, as `module:function`, or as
    `module:function:RANK` for one rank only. Tests inject faults with it."""

    def __post_init__(self) -> None:
        not_negative(debug__delay_ms=self.delay_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A whole training run."""

    run: Path
    """Output folder: metrics, logs, plans, checkpoints and `final`."""
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    lora: LoraConfig = field(default_factory=LoraConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    def __post_init__(self) -> None:
        require(
            "encoder" not in self.model.freeze or self.flow.mode == "frozen",
            f"model.freeze has encoder with flow.mode={self.flow.mode}: set flow.mode to frozen",
        )
        require(
            bool(self.trained_parts),
            f"model.freeze=[{', '.join(self.model.freeze)}] with flow.mode={self.flow.mode}: "
            "nothing would train; remove a part from model.freeze",
        )
        for part, rank in self.lora.ranks.items():
            require(
                part in self.trained_parts,
                f"lora.{part}.rank={rank} with model.freeze=[{', '.join(self.model.freeze)}] and "
                f"flow.mode={self.flow.mode}: {part} does not train, and adapters would; leave "
                f"lora.{part} out, or let the part train",
            )
        require(
            self.schedule_steps >= self.train.steps,
            f"optim.schedule_steps={self.schedule_steps}: it must be at least "
            f"train.steps={self.train.steps}; raise it, or leave it out",
        )
        require(
            self.schedule_steps == 0 or self.optim.warmup_steps < self.schedule_steps,
            f"optim.warmup_steps={self.optim.warmup_steps}: it must be less than "
            f"{'optim.schedule_steps' if self.optim.schedule_steps else 'train.steps'}="
            f"{self.schedule_steps}",
        )

        self._check_tier()
        self._check_parallel()

    def _check_tier(self) -> None:
        tier = self.pool.tier
        require(
            tier != "device" or self.model.device == "cuda",
            f"pool.tier=device with model.device={self.model.device}: there is no such memory; set "
            "pool.tier to host, or model.device to cuda",
        )
        layout = self.flow.rank_layout
        comes_and_goes = self.flow.elastic and self.flow.mode == "frozen"
        require(
            tier != "device" or not comes_and_goes or (layout is not None and layout.colocated),
            "pool.tier=device with flow.mode=frozen: encoder ranks that come and go send rows by "
            "memory of the host; set pool.tier to host or auto, or flow.elastic to false",
        )

    def _check_parallel(self) -> None:
        layout = self.flow.rank_layout
        for module in MODULES:
            given = self.parallel.of(module)
            require(
                given.sharding != "optimizer" or module in self.trained_modules,
                f"parallel.{module}.sharding=optimizer: nothing of the {module} trains, so that "
                "there are no states to divide; set it to full, which divides the weights, or to "
                "replicated",
            )
            ranks = layout.ranks_of(module) if layout is not None else 0
            require(
                given.shard_ranks is None or ranks % given.shard_ranks == 0,
                f"parallel.{module}.shard_ranks={given.shard_ranks}: it must divide the {ranks} "
                f"ranks of the {module}",
            )
        require(
            self.flow.cache.path is None or self.parallel.encoder.sharding == "replicated",
            f"parallel.encoder.sharding={self.parallel.encoder.sharding} with flow.cache.path="
            f"{self.flow.cache.path}: all ranks of a sharded encoder encode together, and images "
            "whose features are stored are not encoded; set it to replicated, or leave flow.cache "
            "out",
        )
        require(
            self.flow.mode != "bounded" or self.parallel.encoder.sharding == "replicated",
            f"parallel.encoder.sharding={self.parallel.encoder.sharding} with flow.mode=bounded: "
            "each rank keeps whole weights of past steps there; set it to replicated, or flow.mode "
            "to strict",
        )

    @property
    def schedule_steps(self) -> int:
        """Steps of the learning rate schedule; 0 if they follow from `train.epochs` later."""
        return self.optim.schedule_steps or self.train.steps

    @property
    def held_out(self) -> DataConfig | None:
        """The data set of evaluations, in its own order; None if the run evaluates nothing."""
        if not self.eval.has_data:
            return None
        return replace(
            self.data,
            path=self.eval.path,
            dataset=self.eval.dataset,
            sources=(),
            image_root=self.eval.image_root or self.data.image_root,
            shuffle=False,
        )

    def is_evaluated(self, step: int) -> bool:
        """Whether the model is evaluated after a step."""
        done, every = step + 1, self.eval.every
        due = done == self.train.steps or (every > 0 and done % every == 0)
        return self.eval.has_data and due

    def is_saved(self, step: int) -> bool:
        """Whether a checkpoint follows a step."""
        if self.eval.keep_best and self.is_evaluated(step):
            return True
        done, every = step + 1, self.checkpoint.every
        return done == self.train.steps or (every > 0 and done % every == 0)

    @property
    def trained_parts(self) -> tuple[Part, ...]:
        """The parts of the model that train."""
        frozen = {*self.model.freeze, *(["encoder"] if self.flow.mode == "frozen" else [])}
        parts: tuple[Part, ...] = ("encoder", "projector", "backbone")
        return tuple(part for part in parts if part not in frozen)

    @property
    def item_tokens(self) -> int:
        """`flow.item_tokens`, or its default on the device of the ranks."""
        given = self.flow.item_tokens
        return ITEM_TOKENS[self.model.device] if given is None else given

    def parallel_of(self, module: ModuleName) -> ModuleParallel:
        """How the ranks of a module share its states, in the chosen layout.

        A single rank has all of them, whatever `parallel` says, unless they are in host memory.
        """
        given = self.parallel.of(module)
        ranks = self.flow.chosen.ranks_of(module)
        if min(ranks, given.shard_ranks or ranks) == 1 and not self.offloads(module):
            return replace(given, sharding="replicated", shard_ranks=None)
        return given

    @property
    def elastic(self) -> bool:
        """Whether encoder ranks are single processes, which may die, leave and join."""
        flow = self.flow
        return (
            flow.elastic
            and flow.mode == "frozen"
            and not flow.chosen.colocated
            and self.parallel_of("encoder").meets == "never"
        )

    @property
    def trained_modules(self) -> set[ModuleName]:
        """The modules with a part that trains."""
        sides: dict[Part, ModuleName] = {
            "encoder": "encoder",
            "projector": self.projector_side,
            "backbone": "backbone",
        }
        return {sides[part] for part in self.trained_parts}

    def offloads(self, module: ModuleName) -> bool:
        """Whether a module keeps its states in host memory; see `optim.offload`."""
        divides = self.parallel.of(module).sharding != "replicated"
        return self.optim.offload and divides and module in self.trained_modules

    @property
    def projector_side(self) -> Literal["encoder", "backbone"]:
        """The module with which the projector is computed.

        Nothing in front of the cut trains in `frozen`, so that a projector that trains is behind
        it.
        """
        trains = "projector" in self.trained_parts
        return "backbone" if self.flow.mode == "frozen" and trains else "encoder"
