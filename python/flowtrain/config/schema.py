"""Configuration of a run: a tree of frozen dataclasses, for YAML and for Python."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from flowtrain.config.checkpoint import CheckpointConfig
from flowtrain.config.checks import require
from flowtrain.config.data import DataConfig
from flowtrain.config.debug import DebugConfig
from flowtrain.config.evaluation import EvalConfig
from flowtrain.config.flow import ITEM_TOKENS, FlowConfig
from flowtrain.config.layout import MODULES, ModuleName
from flowtrain.config.lora import LoraConfig
from flowtrain.config.model import ModelConfig, Part
from flowtrain.config.optim import OptimConfig
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.config.pool import PoolConfig
from flowtrain.config.track import TrackConfig
from flowtrain.config.train import TrainConfig


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
