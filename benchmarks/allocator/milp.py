"""The step, and FlowTrain's objective, as mixed-integer linear programs for HiGHS, by SciPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from scipy.optimize import LinearConstraint, milp

from flowtrain.plan.allocation import Candidates

# Relative loss of the first objective that the second program allows, above HiGHS's tolerance.
_SLACK = 1e-6


class Program:
    """A binary for each candidate that fits into memory, then two real variables.

    Attributes:
        microbatch_s: Seconds from one microbatch to the next, by binary.
        fill_s: Seconds of the first microbatch, by binary.
        update_s: Seconds of the update, by binary.
    """

    def __init__(
        self,
        offers: Mapping[str, Sequence[Candidates]],
        *,
        gpus: int | Mapping[str, int],
        memory_bytes: int | Mapping[str, int],
    ) -> None:
        columns = []
        for module, each in ((number, e) for number, of in enumerate(offers.values()) for e in of):
            limit = memory_bytes if isinstance(memory_bytes, int) else memory_bytes[each.gpu_type]
            pool = 0 if isinstance(gpus, int) else list(gpus).index(each.gpu_type)
            both = numpy.full((2, len(each)), [[module], [pool]])
            values = numpy.stack([each.gpus, each.microbatch_s, each.fill_s, each.update_s])
            columns.append(numpy.vstack([both, values])[:, each.memory_bytes <= limit])
        module, pool, taken, self.microbatch_s, self.fill_s, self.update_s = numpy.hstack(columns)
        self._of_module = module == numpy.arange(len(offers))[:, None]
        limits = [gpus] if isinstance(gpus, int) else list(gpus.values())
        used = numpy.where(pool == numpy.arange(len(limits))[:, None], taken, 0.0)
        self._given = [
            self._constraint(self._of_module, (0, 0), low=1, high=1),
            self._constraint(used, (0, 0), low=-numpy.inf, high=numpy.array(limits)),
        ]

    def _constraint(
        self, sums: numpy.ndarray, factors: Sequence[float], *, low: Any, high: Any
    ) -> LinearConstraint:
        reals = numpy.broadcast_to(numpy.asarray(factors, float), (len(sums), 2))
        return LinearConstraint(numpy.hstack([sums, reals]), low, high)

    def chosen(
        self, values: numpy.ndarray, factors: Sequence[float], *, low: float, high: float
    ) -> LinearConstraint:
        """Limits, for every module, of the chosen value plus factors times the real variables."""
        return self._constraint(self._of_module * values, factors, low=low, high=high)

    def minimum(
        self,
        values: numpy.ndarray | float,
        factors: Sequence[float],
        constraints: Sequence[LinearConstraint],
        *,
        least: Sequence[float] = (0.0, 0.0),
    ) -> numpy.ndarray | None:
        """The binaries that are 1 where chosen values plus factors times reals have their minimum.

        None if nothing fits.

        Args:
            values: Value of each binary.
            factors: Factors of the real variables.
            constraints: Besides one candidate per module, and the budgets.
            least: Lower bounds of the real variables.
        """
        ones = numpy.ones(len(self.fill_s))
        result = milp(
            numpy.append(ones * values, factors),
            integrality=numpy.append(ones, (0, 0)),
            bounds=(numpy.append(0 * ones, least), numpy.append(ones, (numpy.inf, numpy.inf))),
            constraints=[*self._given, *constraints],
            options={"mip_rel_gap": 0.0},
        )
        if result.status not in (0, 2):
            raise RuntimeError(f"HiGHS: {result.message}")
        return None if result.status == 2 else numpy.flatnonzero(result.x[:-2] > 0.5)


def least_step_s(
    offers: Mapping[str, Sequence[Candidates]], *, microbatches: int, **limits: Any
) -> float | None:
    """The minimum step. Real variables: the longest microbatch time, and the longest update."""
    program = Program(offers, **limits)
    chosen = program.minimum(
        program.fill_s,
        (microbatches - 1, 1),
        [
            program.chosen(program.microbatch_s, (-1, 0), low=-numpy.inf, high=0),
            program.chosen(program.update_s, (0, -1), low=-numpy.inf, high=0),
        ],
    )
    if chosen is None:
        return None
    longest_s, update_s = program.microbatch_s[chosen].max(), program.update_s[chosen].max()
    return float(program.fill_s[chosen].sum() + (microbatches - 1) * longest_s + update_s)


def rates(
    offers: Mapping[str, Sequence[Candidates]], *, microbatches: int, **limits: Any
) -> tuple[float, float] | None:
    """FlowTrain's G, and the least F with this G. Real variables: the lowest and highest rate."""
    program = Program(offers, **limits)
    # In units of a rate that occurs, since the tolerances of HiGHS are absolute.
    unit = 1 / float(numpy.median(program.microbatch_s))
    rate = 1 / program.microbatch_s / unit
    between = [
        program.chosen(rate, (-1, 0), low=0, high=numpy.inf),
        program.chosen(rate, (0, -1), low=-numpy.inf, high=0),
    ]
    fastest = program.minimum(0, (-1, 0), between)
    if fastest is None:
        return None
    lowest = float(rate[fastest].min())
    chosen = program.minimum(0, (-1, 1), between, least=(lowest * (1 - _SLACK), 0))
    assert chosen is not None, "the first program has found a choice"
    return unit * lowest, unit * float(rate[chosen].max() - rate[chosen].min())
