"""Sizes of a layout that the user has fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, get_args

from flowtrain.config.checks import ConfigError, require
from flowtrain.config.flow import FlowConfig
from flowtrain.config.layout import RankLayout
from flowtrain.config.parallel import ModuleParallel
from flowtrain.cost.communication import Mesh
from flowtrain.plan.result import Mode, Plan
from flowtrain.plan.runtime import FLOWTRAIN
from flowtrain.plan.space import SHARDINGS, Space

_ENCODER_FIELDS: tuple[str, ...] = ("tp", "dp", "sharding", "shard_ranks")
_BACKBONE_FIELDS: tuple[str, ...] = ("tp", "cp", "pp", "ep", "dp", "sharding", "shard_ranks")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """One size, or the sharding, of one module.

    Attributes:
        module: The module. In mode `prefix` all modules have one layout, and it applies to all.
        field: `tp`, `cp`, `pp`, `ep`, `dp`, `sharding`, or `shard_ranks`.
        value: The size, or the kind of sharding.
    """

    module: str
    field: str
    value: int | str

    def __str__(self) -> str:
        return f"{self.module}.{self.field}={self.value}"

    def allows(self, mesh: Mesh, sharding: str) -> bool:
        """Whether a layout of its module has the value."""
        if self.field == "shard_ranks":
            return True  # Meshes are made with it.
        found = sharding if self.field == "sharding" else getattr(mesh, self.field)
        return bool(found == self.value)


def narrowed(space: Space, words: Sequence[str], *, encoders: Sequence[str]) -> Space:
    """The plans of a space that have some values.

    Args:
        space: The space.
        words: `mode=MODE`, `microbatches=N`, or `MODULE.FIELD=VALUE`, such as `backbone.tp=2`.
        encoders: Names of the encoders of the model.

    Raises:
        ConfigError: A word has another form, names what does not exist, or contradicts another one.
    """
    of_mode = space.fixed
    for word in words:
        space = _narrowed(space, word, encoders)
    for fix, held in product(space.fixed[len(of_mode) :], of_mode):
        require(
            (fix.module, fix.field) != (held.module, held.field) or fix == held,
            f"{space.runtime.option} --fix {fix}: runs of this flow.mode, or with flow.cache, have "
            f"{held}; leave one of them out",
        )
    for one, two in combinations(words, 2):
        (name, _, value), (other, _, another) = one.partition("="), two.partition("=")
        where = f"--fix {one} --fix {two}"
        require(name != other, f"{where}: {name} has one value; give it once")
        require(
            space.modes != ("prefix",)
            or name.rpartition(".")[2] != other.rpartition(".")[2]
            or value == another,
            f"{where}: in mode prefix all modules have one layout; give one value",
        )
    return space


def _narrowed(space: Space, word: str, encoders: Sequence[str]) -> Space:
    name, equals, value = word.partition("=")
    where = f"--fix {word}"
    require(bool(equals), f"{where}: write it as backbone.tp=2, microbatches=16 or mode=colocated")
    if name == "mode":
        modes = [mode for mode in get_args(Mode) if mode == value]
        require(bool(modes), f"{where}: choose from {', '.join(get_args(Mode))}")
        _check_runs(space, where, "mode", modes[0], space.modes)
        return replace(space, modes=tuple(modes))
    if name == "microbatches":
        return replace(space, microbatches=(_size(value, where),))
    module, _, field = name.partition(".")
    fields = {**dict.fromkeys(encoders, _ENCODER_FIELDS), "backbone": _BACKBONE_FIELDS}
    if module not in fields or field not in fields[module]:
        known = [f"{each}.{size}" for each, sizes in fields.items() for size in sizes]
        raise ConfigError(f"{where}: choose from mode, microbatches, {', '.join(known)}")
    if field == "sharding":
        require(value in SHARDINGS, f"{where}: choose from {', '.join(SHARDINGS)}")
        _check_runs(space, where, field, value, space.sharding)
        fix = Fix(module=module, field=field, value=value)
    else:
        fix = Fix(module=module, field=field, value=_size(value, where))
        if field not in ("dp", "shard_ranks") and fix.value not in (sizes := getattr(space, field)):
            _check_runs(space, where, field, fix.value, sizes)
            more: dict[str, Any] = {field: (*sizes, fix.value)}
            space = replace(space, **more)
    return replace(space, fixed=(*space.fixed, fix))


def _check_runs(
    space: Space, where: str, name: str, value: int | str, known: Sequence[int | str]
) -> None:
    """Check that the runtime of a space, if it has one, runs a value.

    Sizes of which the space leaves none out are those that are tried, and not all that it runs.
    """
    runtime = space.runtime
    values = " or ".join(f"{name}={each}" for each in known)
    limited = known != getattr(Space(), "modes" if name == "mode" else name)
    require(
        not (runtime.name and limited) or value in known,
        f"{runtime.option} {where}: {runtime.name} runs {values}; leave one of the two options out",
    )


def _size(text: str, where: str) -> int:
    require(text.isdecimal() and int(text) > 0, f"{where}: it must be a number of at least 1")
    return int(text)


def run_space(flow: FlowConfig) -> Space:
    """Plans that FlowTrain runs: on one host, each module divided over its ranks or not.

    Args:
        flow: Section `flow`. With mode `bounded`, encoders are replicated, and steps are in one
            order; with a cache, encoders are replicated.
    """
    space = Space(
        modes=("colocated", "disaggregated"),
        tp=(1,),
        cp=(1,),
        pp=(1,),
        ep=(1,),
        runtime=FLOWTRAIN,
    )
    if flow.mode != "bounded" and flow.cache.path is None:
        return space
    fixed = (Fix(module="encoder", field="sharding", value="replicated"),)
    return replace(space, chunks=flow.mode != "bounded", fixed=fixed)


def sharded(space: Space, parallel: Mapping[str, ModuleParallel]) -> Space:
    """The plans of a space in which some modules share out what is given for them."""
    fixed = [
        Fix(module=name, field="sharding", value=given.sharding) for name, given in parallel.items()
    ]
    fixed += [
        Fix(module=name, field="shard_ranks", value=given.shard_ranks)
        for name, given in parallel.items()
        if given.shard_ranks is not None
    ]
    return replace(space, fixed=(*space.fixed, *fixed))


def laid_out(space: Space, layout: RankLayout) -> Space:
    """The plans of a space with a layout of the ranks."""
    ranks = {
        "encoder": layout.encoder_ranks,
        "backbone": layout.backbone_ranks,
    }
    fixed = (Fix(module=module, field="dp", value=n) for module, n in ranks.items())
    return replace(
        space,
        modes=("colocated" if layout.colocated else "disaggregated",),
        fixed=(*space.fixed, *fixed),
    )


def only(plan: Plan) -> Space:
    """The space in which a plan is the only one, but for what each stage recomputes."""
    layouts = [module.layout for module in plan.modules]
    # In mode `prefix`, the one layout is that of the backbone too.
    names = [*(module.module for module in plan.modules[:-1]), "backbone"]
    fixed = tuple(
        Fix(module=name, field=field, value=getattr(layout, field))
        for name, layout in zip(names, layouts, strict=True)
        for field in ("dp", "tp", "sharding", "shard_ranks")
        if getattr(layout, field) is not None
    )
    layout = layouts[-1]
    return Space(
        modes=(plan.mode,),
        tp=tuple({each.tp for each in layouts}),
        cp=(layout.cp,),
        pp=(layout.pp,),
        ep=(layout.ep,),
        # In their order, as a module with one replica has the first of them.
        sharding=tuple(s for s in SHARDINGS if any(each.sharding == s for each in layouts)),
        microbatches=(plan.microbatches,),
        fixed=fixed,
    )
