"""Whether a plan is still one for what a run finds: its samples, its GPUs, and its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flowtrain.config.checks import require
from flowtrain.config.tree import to_dict
from flowtrain.cost.accelerators import ACCELERATORS
from flowtrain.plan.cluster import parse_cluster
from flowtrain.plan.plan_file import PlanFile, PlanInput, digest, file_digest

_AGAIN = "run `flowtrain plan` again"
_LOCAL = "local"
# A driver keeps some memory of a GPU.
_MEMORY_SHARE = 0.98
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenGpus:
    """The GPUs that a run sees.

    Attributes:
        count: How many there are.
        gpu_type: Their type in the table of FlowTrain, or the name that their driver gives them.
        memory_bytes: Memory of the smallest.
    """

    count: int
    gpu_type: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a run finds of what a plan was made for.

    Attributes:
        samples: As in `PlanFile`, or why that is not known.
        gpus: The GPUs, or why they are not known.
        profile: `flow.profile`.
    """

    samples: Mapping[str, str] | str
    gpus: SeenGpus | str
    profile: Path | None = None


def check_seen(file: PlanFile, seen: Seen, *, path: Path) -> list[str]:
    """Check that a plan is not stale.

    Args:
        file: The plan.
        seen: What the run finds.
        path: The `plan.json`, for messages.

    Returns:
        What could not be checked, in words.

    Raises:
        ConfigError: The samples, the GPUs, or a file that the plan was made from are others. The
            message names what differs.
    """
    checks = (
        *(_input(each, seen, path) for each in file.inputs),
        _samples(file, seen, path),
        _gpus(file, seen, path),
    )
    return [words for check in checks for words in check]


def _input(made_from: PlanInput, seen: Seen, path: Path) -> Iterator[str]:
    what, name = made_from.what, made_from.name
    if what == "profile" and seen.profile is not None:
        require(
            file_digest(seen.profile) == made_from.digest,
            f"{path}: flow.profile={seen.profile} is not the profile {name} of the plan; {_AGAIN} "
            f"with --profile {seen.profile}, or leave flow.profile out",
        )
    elif made_from.file is not None:
        if not made_from.file.is_file():
            yield f"{what} {made_from.file}, which is gone"
            return
        require(
            file_digest(made_from.file) == made_from.digest,
            f"{path}: {what} {made_from.file} was changed after the plan was made; {_AGAIN}",
        )
    elif what == "cluster" and name != _LOCAL:
        require(
            digest(to_dict(parse_cluster(name))) == made_from.digest,
            f"{path}: cluster {name}: the plan has other figures of it than this FlowTrain; "
            f"{_AGAIN}",
        )


def _samples(file: PlanFile, seen: Seen, path: Path) -> Iterator[str]:
    if not file.samples:
        name = next(each.name for each in file.inputs if each.what == "workload")
        yield f"the samples, since the plan is for those of {name}"
        return
    if isinstance(seen.samples, str):
        yield f"the samples ({seen.samples})"
        return
    before, now = file.samples, seen.samples
    names = [*before, *(name for name in now if name not in before)]
    changed = [name for name in names if before.get(name) != now.get(name)]
    require(
        not changed,
        f"{path}: the plan is for other samples, as these changed: {', '.join(changed)}; run "
        "`flowtrain data check RUN.yaml` and then `flowtrain plan RUN.yaml`",
    )


def _gpus(file: PlanFile, seen: Seen, path: Path) -> Iterator[str]:
    if isinstance(seen.gpus, str):
        yield f"the GPUs ({seen.gpus})"
        return
    gpus, again = seen.gpus, "run `flowtrain plan` with --cluster local"
    needed = math.ceil(file.plan.gpus / file.nodes)
    require(
        gpus.count >= needed,
        f"{path}: the plan is for {needed} GPUs{' of each host' if file.nodes > 1 else ''}, and "
        f"this machine has {gpus.count}; {again}",
    )
    for planned, memory_bytes in file.gpu_bytes.items():
        if planned != gpus.gpu_type and gpus.gpu_type in file.gpu_bytes:
            continue  # Those of another host.
        known = planned in ACCELERATORS or gpus.gpu_type in ACCELERATORS
        require(
            not known or planned == gpus.gpu_type,
            f"{path}: the plan is for {planned}, and this machine has {gpus.gpu_type}; {again}",
        )
        require(
            gpus.memory_bytes >= _MEMORY_SHARE * memory_bytes,
            f"{path}: the plan is for {planned} of {memory_bytes / _GIB:.1f} GiB, and those of "
            f"this machine have {gpus.memory_bytes / _GIB:.1f} GiB; {again}",
        )
        if not known:
            yield f"the type of the GPUs, {planned}"
