"""What the search over plans returns, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from flowtrain.config.parallel import Recompute, Sharding
from flowtrain_core import FlowTrainError

Mode = Literal["prefix", "colocated", "disaggregated"]
"""Where encoders run: in front of the backbone in the same pipeline, with the same layout; on all
ranks before the pipeline; or each on ranks of its own."""

MOST_SIMULATED = 100
"""Plans that are simulated at most, and of the uniform ones as many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLayout:
    """Layers of a pipeline stage.

    Attributes:
        first: Number of its first layer.
        end: Number of the first layer behind it.
        recompute: What its blocks compute again in the backward pass.
        recompute_layers: Number of blocks, from the first, that do so; None for all.
    """

    first: int
    end: int
    recompute: Recompute
    recompute_layers: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Parallelism of a module.

    Attributes:
        tp: Ranks that share each layer.
        cp: Ranks that share the tokens of a row.
        pp: Pipeline stages.
        ep: Ranks that share the experts of a layer; they are among cp x dp.
        dp: Ranks with rows of their own.
        sharding: What the replicas share out.
        shard_ranks: Replicas that divide one copy (HSDP); None for all.
        stages: Layers of each stage, numbered from 0 in the order of the module.
        recompute: Whether the encoder encodes each item again before its backward pass, and keeps
            nothing in between (`flow.recompute`).
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    sharding: Sharding = "replicated"
    shard_ranks: int | None = None
    stages: tuple[StageLayout, ...] = ()
    recompute: bool = False

    @property
    def gpus(self) -> int:
        """Ranks of the module."""
        return self.tp * self.cp * self.pp * self.dp

    def __str__(self) -> str:
        sizes = [f"{name}={getattr(self, name)}" for name in ("tp", "cp", "pp", "ep", "dp")]
        return " ".join([size for size in sizes if not size.endswith("=1")] or ["dp=1"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Time of a microbatch on one stage, or of a whole step, by what it is spent on.

    Attributes:
        forward: Forward pass.
        backward: Backward pass, without what follows.
        recompute: Forward passes that are computed again.
        tp: Collectives of tensor parallelism.
        cp: Keys and values of other ranks, as far as attention does not hide them.
        ep: Tokens to experts and back.
        pp: Sends between stages, or of rows from the encoder to the backbone.
        shards: Weights gathered and gradients scattered in each microbatch, as far as passes do not
            hide them.
    """

    forward: float = 0.0
    backward: float = 0.0
    recompute: float = 0.0
    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0
    pp: float = 0.0
    shards: float = 0.0

    @property
    def total(self) -> float:
        passes_s = self.forward + self.backward + self.recompute
        return passes_s + self.tp + self.cp + self.ep + self.pp + self.shards


@dataclass(frozen=True, kw_only=True, slots=True)
class RankBytes:
    """Memory of a rank, by kind.

    Attributes:
        weights: Weights.
        masters: Weights that the optimizer steps, if the passes have others.
        gradients: Gradients.
        moments: Moments of the optimizer.
        activations: What is kept for the backward passes of the microbatches in flight.
        working: What exists beside it while one layer runs: the layer that is recomputed, weights
            that were gathered and their gradients, or gradients of logits.
        rows: Rows between encoders and backbone, and their gradients.
        host: Weights, gradients and moments in host memory, which `total` leaves out.
    """

    weights: float = 0.0
    masters: float = 0.0
    gradients: float = 0.0
    moments: float = 0.0
    activations: float = 0.0
    working: float = 0.0
    rows: float = 0.0
    host: float = 0.0

    @property
    def states(self) -> float:
        """Weights, master weights, gradients and moments."""
        return self.weights + self.masters + self.gradients + self.moments

    @property
    def total(self) -> float:
        return self.states + self.activations + self.working + self.rows

    @property
    def largest(self) -> str:
        """The kind that takes the most."""
        return max(self.of_device(), key=lambda name: getattr(self, name))

    @staticmethod
    def of_device() -> list[str]:
        """The kinds that are in the memory of the device."""
        return [field.name for field in fields(RankBytes) if field.name != "host"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModulePlan:
    """Layout of a module with its times and its memory.

    Attributes:
        module: `backbone`, or name of an encoder: `encoder` if there is one; in mode `prefix`,
            `model` is all of them.
        gpu_type: Type of its GPUs.
        layout: Its parallelism.
        microbatch: Time of a microbatch on the longest stage.
        stage_s: Seconds of a microbatch by stage, both passes.
        fill_s: Seconds of a microbatch through all stages, forward and backward.
        heaviest_s: Seconds by which the heaviest sample of a batch makes a step longer.
        once: Time of what runs once a step, before and behind the backbone's pipeline
            (encoders in mode `colocated`).
        reduce_s: Seconds to sum the gradients, and to gather the weights that other replicas step,
            as far as passes do not hide them.
        optimizer_s: Seconds of the optimizer's step.
        memory: Memory of a rank by stage.
        memory_bytes: What a rank may use for the module while it runs, beside what other modules on
            the same rank hold meanwhile.
    """

    module: str
    gpu_type: str
    layout: Layout
    microbatch: Seconds
    stage_s: tuple[float, ...]
    fill_s: float
    once: Seconds
    reduce_s: float
    optimizer_s: float
    memory: tuple[RankBytes, ...]
    memory_bytes: int
    heaviest_s: float = 0.0

    @property
    def update_s(self) -> float:
        """Seconds between the last backward pass and the next step."""
        return self.reduce_s + self.optimizer_s

    @property
    def fullest(self) -> int:
        """Number of the stage whose ranks have the least memory left."""
        return max(range(len(self.memory)), key=lambda number: self.memory[number].total)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One plan for a step.

    Attributes:
        mode: Where encoders run.
        modules: Layout of each module; one entry, `model`, in mode `prefix`.
        microbatches: Microbatches of a replica of the backbone per step.
        microbatch_tokens: Maximum tokens of one, to which samples are packed.
        mean_tokens: Tokens of one in the mean.
        step_s: Seconds of a step of mean samples: what the search minimizes.
        simulated_s: Seconds of a step by replay of scheduled batches, mean of those sampled; None
            if it was not simulated.
        bottleneck: The module that takes the most time in a step, if it never waited.
        model_flops: Model FLOPs of a step in the mean, without what is computed again.
        mfu: These over the peak of all GPUs that were planned for and `step_s`.
        tokens: Tokens of a step in the mean.
        allocated: GPUs that were planned for, with those that the plan leaves idle.
        not_run: What FlowTrain's runtime does not run yet; empty if it runs the plan.
        chunk_slots: Microbatches that colocated ranks take at a time, with the encoder's passes of
            their items (`flow.chunk_slots`); None takes all of a step.
        offload: Whether sharded modules that train have their states in host memory
            (`optim.offload`).
    """

    mode: Mode
    modules: tuple[ModulePlan, ...]
    microbatches: int
    microbatch_tokens: int
    mean_tokens: float
    step_s: float
    simulated_s: float | None
    bottleneck: str
    model_flops: float
    mfu: float
    tokens: float
    allocated: int
    not_run: tuple[str, ...]
    chunk_slots: int | None = None
    offload: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of all modules; colocated modules share theirs."""
        counts = [module.layout.gpus for module in self.modules]
        return sum(counts) if self.mode == "disaggregated" else max(counts)

    @property
    def pool_bytes(self) -> float:
        """Size of the pool: rows between the modules and their gradients, of all encoder ranks."""
        return sum(module.memory[0].rows * module.layout.gpus for module in self.modules[:-1])

    @property
    def host_bytes(self) -> float:
        """States in host memory, of all ranks."""
        return sum(
            rank.host * module.layout.gpus / len(module.memory)
            for module in self.modules
            for rank in module.memory
        )

    @property
    def recompute(self) -> bool:
        """Whether the encoder encodes each item again (`flow.recompute`)."""
        return any(module.layout.recompute for module in self.modules)

    @property
    def best_s(self) -> float:
        """The simulated seconds of a step if there are any, and otherwise `step_s`."""
        return self.step_s if self.simulated_s is None else self.simulated_s

    @property
    def best_mfu(self) -> float:
        """The MFU of `best_s`."""
        return self.mfu * self.step_s / self.best_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all GPUs."""
        return self.tokens / self.best_s

    @property
    def gpu_hours_per_billion_tokens(self) -> float:
        """GPU hours for 1e9 tokens, those of idle GPUs included."""
        return 1e9 / self.tokens_per_s * self.allocated / 3600

    def module(self, name: str) -> ModulePlan:
        """The plan of a module; `model` of mode `prefix` is the plan of all."""
        return next(plan for plan in self.modules if plan.module in (name, "model"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """A number or a rule that the answer rests on.

    Attributes:
        name: What it is about.
        value: The number or the rule.
        source: Where it is from: `measured`, a data sheet, a paper, or `assumption`.
    """

    name: str
    value: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleTest:
    """Whether other samples of the same workload would give another plan.

    Attributes:
        samples: Samples of the workload.
        enough: Samples of which every draw gives the same mode and GPUs of modules; None if draws
            of all samples do not.
        draws: Draws of each size.
        regret: For the draws of all samples, the most that the time of a step of the best plan is
            above that of the plan which is the best for the draw.
    """

    samples: int
    enough: int | None
    draws: int
    regret: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanReport:
    """Result of a search.

    Attributes:
        model: Name of the model.
        gpus: Available GPUs by type.
        samples: Samples of a step.
        best: The plan with the shortest step among `plans`.
        uniform: The best plan with one layout for the whole model (mode `prefix`), by
            `Plan.best_s`; None if none fits.
        plans: The best plans of those simulated, the best first, by `Plan.best_s`.
        cheapest: The plan with the lowest `step_s`: no plan of the search space has a lower one.
        cheapest_uniform: The uniform plan with the lowest `step_s`; no uniform plan has a lower
            one. None if none fits.
        smaller: The best plan for the next smaller budget, with its GPUs; None if none fits.
        larger: The best plan for the next larger budget, with its GPUs; None beyond one host, if
            plans have one.
        counts: Candidates by what became of them: `priced`, `bounded`, `memory`, `range`.
        assumptions: What the answer rests on.
        warnings: Why the times of `best` may be far off.
        sample_test: Whether the samples are enough; None if nothing was simulated.
        simulated: Plans that were simulated.
        all_simulated: Whether these are all, each layout once, whose `step_s` is below the shortest
            simulated step. If not, a limit ended the simulation, and others may be shorter.
        all_uniform_simulated: The same of uniform plans, and of `uniform`.
    """

    model: str
    gpus: Mapping[str, int]
    samples: int
    best: Plan
    uniform: Plan | None
    plans: tuple[Plan, ...]
    cheapest: Plan
    smaller: tuple[int, Plan] | None
    larger: tuple[int, Plan] | None
    counts: Mapping[str, int]
    assumptions: tuple[Assumption, ...]
    cheapest_uniform: Plan | None = None
    warnings: tuple[str, ...] = ()
    sample_test: SampleTest | None = None
    simulated: int = 0
    all_simulated: bool = True
    all_uniform_simulated: bool = True

    @property
    def gap(self) -> float:
        """How far `best` is above the lowest step for mean samples, as a share of that.

        Nothing is proven of simulated steps: a plan that was not simulated may have a shorter one.
        """
        return self.best.step_s / self.cheapest.step_s - 1

    @property
    def uniform_gap(self) -> float | None:
        """The same of the lowest step of uniform plans: 0 if no layouts of their own are better."""
        if self.cheapest_uniform is None:
            return None
        return self.cheapest_uniform.step_s / self.cheapest.step_s - 1


class NoPlanError(FlowTrainError, ValueError):
    """No plan fits. The message says what is missing, and the smallest budget that fits."""


class OutOfRangeError(NoPlanError):
    """The times of layers are not valid for the rows of any plan."""
