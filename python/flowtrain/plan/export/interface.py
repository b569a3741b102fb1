"""Programs that a plan is written for, and what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from flowtrain.config.checks import require
from flowtrain.config.dtypes import Dtype
from flowtrain.config.model import Part
from flowtrain.config.schema import RunConfig
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.export.uniform import Uniform, mesh_of
from flowtrain.plan.plan_file import PlanFile, PlannedRun
from flowtrain.plan.space import Space

Flag = tuple[str, ...]
"""A flag and its values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """A plan in the words of a program.

    Attributes:
        flags: Flags, in an order that the program reads.
        environment: Variables that the program requires.
        before: What is to be done before it runs, in words.
        missing: What of the plan has no counterpart, in words.
    """

    flags: tuple[Flag, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The flags as the words of a command."""
        return list(chain.from_iterable(self.flags))


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A program.

    Attributes:
        name: Value of `--export`.
        version: Version whose sources were read, and whose flags are written.
        program: What is started.
        space: Plans that it runs; `space.runtime` has its name.
        if_tied: Fields of the space if the output head has the weights of the embedding.
        freezes: Parts that it can freeze.
        logit_bytes: `train.logit_bytes` that plans have for it; None leaves that of the run.
        dtypes: `model.dtype` and `model.compute_dtype` that it can have.
        flags: Writes a plan.
    """

    name: str
    version: str
    program: str
    space: Space
    if_tied: Mapping[str, Any]
    freezes: tuple[Part, ...]
    logit_bytes: int | None
    dtypes: tuple[tuple[Dtype, Dtype], ...]
    flags: Callable[[Uniform, PlannedRun], Flags]

    def space_of(self, model: ModelDescription) -> Space:
        """Plans of a model that it runs.

        Raises:
            ConfigError: The model has several encoders.
        """
        names = [encoder.name for encoder in model.encoders]
        require(
            len(names) == 1,
            f"{self._where}: {model.name} has several encoders ({', '.join(names)}), and "
            f"{self.space.runtime.name} {self.version} has models with one; leave the option out",
        )
        return replace(self.space, **self.if_tied) if model.tied_parameters else self.space

    def planned_for(self, config: RunConfig) -> RunConfig:
        """The run that plans are made for.

        Raises:
            ConfigError: The program cannot have a value of it.
        """
        self.check_run(PlannedRun.of(config), offload=config.optim.offload)
        if self.logit_bytes is None:
            return config
        return replace(config, train=replace(config.train, logit_bytes=self.logit_bytes))

    def check_run(self, run: PlannedRun, *, offload: bool) -> None:
        """Check what does not depend on the layout.

        Raises:
            ConfigError: The program cannot have a value of the run.
        """
        program, where = f"{self.space.runtime.name} {self.version}", self._where
        adapters = ", ".join(part for part, _ in run.lora)
        require(
            not run.lora,
            f"{where}: adapters of {adapters} are not exported; plan without --lora and `lora`",
        )
        require(
            not offload,
            f"{where}: states in host memory are not exported; plan without --offload and "
            "optim.offload",
        )
        for part in ("encoder", "projector", "backbone"):
            require(
                part in run.trained_parts or part in self.freezes,
                f"{where}: {part} is frozen, and {program} can freeze "
                f"{' and '.join(self.freezes) or 'nothing'}; take it out of model.freeze",
            )
        dtypes = run.dtype, run.compute_dtype
        known = [f"{dtype} and {compute}" for dtype, compute in self.dtypes]
        require(
            dtypes in self.dtypes,
            f"{where}: model.dtype={run.dtype} and model.compute_dtype={run.compute_dtype}: "
            f"{program} has {', or '.join(known)}; set one of these pairs",
        )

    def of_plan(self, file: PlanFile) -> Exported:
        """A plan for this program.

        Raises:
            ConfigError: The program cannot run it; the message says why, and the way out.
        """
        self.check_run(file.run, offload=file.plan.offload)
        reasons = list(self._reasons(file))
        require(
            not reasons,
            f"{self._where}: {self.space.runtime.name} {self.version} does not run this plan: "
            f"{'; '.join(reasons)}; run `flowtrain plan {self._where}` without --from, which "
            "searches the plans that it runs",
        )
        flags = self.flags(Uniform.of(file), file.run)
        return Exported(target=self, file=file, flags=flags)

    def _reasons(self, file: PlanFile) -> Iterator[str]:
        """Why the space does not have a plan."""
        space = self.space
        if file.plan.mode not in space.modes:
            yield f"mode={file.plan.mode} (it has {' or '.join(space.modes)})"
            return
        (module,) = file.plan.modules
        layout = module.layout
        for name in ("tp", "cp", "pp", "ep"):
            if (size := getattr(layout, name)) > 1 and getattr(space, name) == (1,):
                yield f"{name}={size} (it has 1)"
        if layout.sharding not in space.sharding:
            yield f"sharding={layout.sharding} (it has {' or '.join(space.sharding)})"
        elif not space.runtime.allows(mesh_of(layout), layout.sharding):
            yield f"ep={layout.ep} with tp={layout.tp} and sharding={layout.sharding}"
        yield from Uniform.reasons(file)

    @property
    def _where(self) -> str:
        return f"--export {self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A plan for a program.

    Attributes:
        target: The program.
        file: The plan.
        flags: The plan in its words.
    """

    target: Target
    file: PlanFile
    flags: Flags

    @property
    def title(self) -> str:
        """Name and version of the program."""
        return f"{self.target.space.runtime.name} {self.target.version}"
