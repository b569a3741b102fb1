"""What a plan decides of a run: its ranks, and what each module shares out and computes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from flowtrain.config.layout import MODULES, RankLayout
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.config.schema import RunConfig
from flowtrain.plan.result import Layout, Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLayout:
    """Fields of a run that a plan sets.

    Attributes:
        ranks: Which ranks there are.
        parallel: Section `parallel`.
        recompute: `flow.recompute`.
        chunk_slots: `flow.chunk_slots`.
        offload: `optim.offload`; a run that has it keeps it in any case.
    """

    ranks: RankLayout
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    recompute: bool = False
    chunk_slots: int | None = None
    offload: bool = False

    @staticmethod
    def of_plan(plan: Plan) -> RunLayout:
        """The layout of a plan that FlowTrain runs.

        In mode `prefix`, without images, both modules have the layout of the one chain of layers.
        """
        encoder, backbone = plan.module("encoder").layout, plan.module("backbone").layout
        if plan.mode == "disaggregated":
            ranks = RankLayout.decoupled(encoder.dp, backbone.dp)
        else:
            ranks = RankLayout.colocated_on(plan.gpus)
        return RunLayout(
            ranks=ranks,
            parallel=ParallelConfig(encoder=_parallel(encoder), backbone=_parallel(backbone)),
            recompute=plan.recompute,
            chunk_slots=plan.chunk_slots,
            offload=plan.offload,
        )

    def beside(self, given: ParallelConfig) -> RunLayout:
        """This layout with what a run gives of section `parallel` in its place.

        A module that is given nothing to compute again may do so all the same.
        """
        modules = {}
        for module in MODULES:
            own, planned = given.of(module), self.parallel.of(module)
            if own == ModuleParallel():
                own = planned
            elif own.recompute == "none":
                own = replace(
                    own, recompute=planned.recompute, recompute_layers=planned.recompute_layers
                )
            modules[module] = own
        return replace(self, parallel=ParallelConfig(**modules))

    def applied(self, config: RunConfig) -> RunConfig:
        """A run with this layout.

        One chain of layers has one sharding, and a module of it that does not train has no states
        to divide.
        """
        flow = config.flow.with_layout(
            self.ranks, recompute=self.recompute, chunk_slots=self.chunk_slots
        )
        modules = {}
        for module in MODULES:
            own = self.parallel.of(module)
            if own.sharding == "optimizer" and module not in config.trained_modules:
                own = replace(own, sharding="replicated", shard_ranks=None)
            modules[module] = own
        optim = replace(config.optim, offload=self.offload or config.optim.offload)
        return replace(config, flow=flow, parallel=ParallelConfig(**modules), optim=optim)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields beside the numbers of ranks, by their names in the configuration."""
        found: dict[str, Any] = {
            f"parallel.{module}.{name}": getattr(getattr(self.parallel, module), name)
            for module in MODULES
            for name in ("sharding", "shard_ranks", "recompute", "recompute_layers")
        }
        return found | {
            "flow.recompute": self.recompute,
            "flow.chunk_slots": self.chunk_slots,
            "optim.offload": self.offload,
        }

    def __str__(self) -> str:
        return ", ".join([str(self.ranks), *self._words()])

    def _words(self) -> Iterator[str]:
        defaults = RunLayout(ranks=self.ranks).fields
        for name, value in self.fields.items():
            if value != defaults[name]:
                yield name if value is True else f"{name}={value}"


def _parallel(layout: Layout) -> ModuleParallel:
    """Section of a module, which is one stage."""
    (stage,) = layout.stages
    return ModuleParallel(
        sharding=layout.sharding,
        shard_ranks=layout.shard_ranks,
        recompute=stage.recompute,
        recompute_layers=stage.recompute_layers,
    )
