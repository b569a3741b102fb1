"""A plan with one layout for the whole model, as other programs see it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowtrain.cost.communication import Mesh
from flowtrain.plan.plan_file import PlanFile
from flowtrain.plan.result import Layout, Plan

_EMBEDDING = re.compile(r"(^|\.)embed_tokens$")
_BLOCK = re.compile(r"(^|\.)layers\.(\d+)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Uniform:
    """A plan of mode `prefix`.

    Attributes:
        plan: The plan.
        samples: Samples of a step.
        blocks: Numbers of the decoder's blocks on each stage, in their order.
        recomputes: Parts whose blocks are computed again: `encoder`, `backbone`.
    """

    plan: Plan
    samples: int
    blocks: tuple[tuple[int, ...], ...]
    recomputes: tuple[str, ...]

    @staticmethod
    def of(file: PlanFile) -> Uniform:
        """The plan of a file for which there are no `reasons`."""
        (module,) = file.modules
        in_front, _ = _split(module.stages)
        parts = {"encoder" if name in in_front else "backbone" for name in module.recomputed}
        return Uniform(
            plan=file.plan,
            samples=file.run.global_batch,
            blocks=tuple(
                tuple(int(found[2]) for name in stage if (found := _decoder(name, in_front)))
                for stage in module.stages
            ),
            recomputes=tuple(sorted(parts)),
        )

    @staticmethod
    def reasons(file: PlanFile) -> Iterator[str]:
        """Why programs that have the encoder on the first stage do not run a plan."""
        (module,) = file.modules
        (planned,) = file.plan.modules
        in_front, behind = _split(module.stages)
        for number, stage in enumerate(module.stages):
            if number and stage[0] in in_front:
                yield f"stage {number} has {stage[0]} (the first stage has all up to the embedding)"
            if number + 1 < len(module.stages) and stage[-1] in behind:
                yield (
                    f"stage {number} has {stage[-1]} (the last stage has all behind the decoder's "
                    "blocks)"
                )
        again = {
            (stage.recompute, stage.recompute_layers is None) for stage in planned.layout.stages
        }
        if not again <= {("full", True)} and not again <= {("none", True)}:
            yield "only some blocks are computed again (it has all or none)"

    @property
    def layout(self) -> Layout:
        return self.plan.modules[0].layout

    @property
    def rows(self) -> int:
        """Rows of a step: the packed microbatches of all replicas."""
        return self.plan.microbatches * self.layout.dp

    @property
    def row_tokens(self) -> int:
        """Tokens of a row, which tensor and context parallelism divide into equal parts."""
        parts = self.layout.tp * (2 * self.layout.cp if self.layout.cp > 1 else 1)
        return parts * math.ceil(self.plan.microbatch_tokens / parts)

    @property
    def is_even(self) -> bool:
        """Whether all stages have as many of the decoder's blocks."""
        return len({len(own) for own in self.blocks}) == 1

    def missing(self) -> Iterator[str]:
        """What of the plan no program but FlowTrain has, in words."""
        plan = self.plan
        yield (
            f"balanced microbatches: the plan's times are for microbatches that FlowTrain packs to "
            f"equal work, {plan.mean_tokens:.0f} tokens in the mean and {plan.microbatch_tokens} "
            f"at most; there, rows of {self.row_tokens} are filled by length from a buffer of "
            "samples, and may be padded"
        )
        yield (
            f"the global batch in samples: {self.samples} samples are about {self.rows} rows, of "
            "which a step has always as many"
        )
        yield "the output head on target tokens alone: there, it runs on those of images as well"
        yield (
            "layouts of the encoder's own (modes colocated and disaggregated), the pool between "
            "the modules and flow.staleness: such plans were left out"
        )


def mesh_of(layout: Layout) -> Mesh:
    """The sizes of a layout."""
    return Mesh(tp=layout.tp, cp=layout.cp, dp=layout.dp, pp=layout.pp, ep=layout.ep)


def _split(stages: Sequence[Sequence[str]]) -> tuple[frozenset[str], frozenset[str]]:
    """Names up to the embedding, and names behind the decoder's blocks."""
    names = [name for stage in stages for name in stage]
    embedding = next(n for n, name in enumerate(names) if _EMBEDDING.search(name))
    blocks = [n for n, name in enumerate(names) if n > embedding and _BLOCK.search(name)]
    return frozenset(names[: embedding + 1]), frozenset(names[blocks[-1] + 1 :])


def _decoder(name: str, in_front: frozenset[str]) -> re.Match[str] | None:
    return None if name in in_front else _BLOCK.search(name)
