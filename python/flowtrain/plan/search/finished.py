"""Plans with their simulated steps: the best for mean samples, and all that may be shorter."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

from flowtrain.plan.result import MOST_SIMULATED, Plan
from flowtrain.plan.search.best import Best
from flowtrain.plan.search.convert import plan_of
from flowtrain.plan.search.coupled import Priced
from flowtrain.plan.search.simulate import Simulation
from flowtrain.plan.space import GpuPool


class Finished:
    """Plans, simulated if there is a simulation.

    Args:
        pools: All GPUs that are planned for.
        simulation: The simulation; None leaves plans with their price for mean samples.
    """

    def __init__(self, pools: Sequence[GpuPool], simulation: Simulation | None) -> None:
        self._pools, self._simulation = pools, simulation
        self._found: dict[Hashable, tuple[Priced, Plan]] = {}

    @property
    def plans(self) -> list[tuple[Priced, Plan]]:
        """The plans so far, the best first, by `Plan.best_s`; of equal ones the first."""
        return sorted(self._found.values(), key=lambda entry: entry[1].best_s)

    def of(self, priced: Priced) -> Plan:
        """A plan."""
        key = (priced.kind, priced.step_s)
        if key not in self._found:
            plan = plan_of(priced, self._pools)
            if self._simulation is not None:
                plan = replace(plan, simulated_s=self._simulation.step_s(priced))
            self._found[key] = priced, plan
        return self._found[key][1]

    def best(self, keep: int) -> Best[Priced]:
        """An empty list of so many plans, and of all that take less than one simulated.

        Args:
            keep: Number of plans to keep.
        """
        if self._simulation is None:
            return Best(keep)
        return Best(keep, most=MOST_SIMULATED, limit_of=lambda priced: self.of(priced).best_s)

    def finish(self, best: Best[Priced], keep: int) -> bool:
        """Finish plans in the order of their prices, as long as the next one may be the shortest.

        Args:
            best: The plans, of a list that `best` made.
            keep: Number of plans that are finished at least.

        Returns:
            Whether all plans with a price below the shortest simulated step were simulated, each
            kind once. If not, they are more than `MOST_SIMULATED`.
        """
        shortest_s = math.inf
        for number, plan in enumerate(best.plans):
            if number >= keep and plan.step_s >= shortest_s:
                break
            shortest_s = min(shortest_s, self.of(plan).best_s)
        return self._simulation is None or best.cutoff_s >= shortest_s
