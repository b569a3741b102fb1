"""`plan.json`: a plan, with what it was made for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flowtrain.config.checks import ConfigError, require
from flowtrain.config.dtypes import Dtype
from flowtrain.config.flow import Mode
from flowtrain.config.model import Part
from flowtrain.config.schema import RunConfig
from flowtrain.config.tree import build, to_dict
from flowtrain.plan.result import Plan

VERSION = 6
"""Version of the format; files of other versions are an error."""

# Fields of config.json that say nothing about the sizes of a model.
_NOT_SIZES = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """What a plan assumes of a run.

    Attributes:
        trained_parts: Parts of the model that train.
        lora: Rank of the LoRA adapters of each part that trains by them.
        mode: `flow.mode`.
        dtype: `model.dtype`.
        compute_dtype: `model.compute_dtype`, or `model.dtype` in its place.
        optimizer: `optim.name`.
        momentum: Whether SGD keeps a moment.
        global_batch: `train.global_batch`.
        microbatch_tokens: `train.microbatch_tokens`.
        logit_bytes: `train.logit_bytes`.
        item_tokens: `flow.item_tokens`.
    """

    trained_parts: tuple[Part, ...]
    lora: tuple[tuple[Part, int], ...]
    mode: Mode
    dtype: Dtype
    compute_dtype: Dtype
    optimizer: str
    momentum: bool
    global_batch: int
    microbatch_tokens: int
    logit_bytes: int
    item_tokens: int

    @staticmethod
    def of(config: RunConfig) -> PlannedRun:
        """What a plan would assume of this run."""
        return PlannedRun(
            trained_parts=config.trained_parts,
            lora=tuple((part, adapter.rank) for part, adapter in config.lora.adapters.items()),
            mode=config.flow.mode,
            dtype=config.model.dtype,
            compute_dtype=config.model.pass_dtype,
            optimizer=config.optim.name,
            momentum=config.optim.momentum > 0,
            global_batch=config.train.global_batch,
            microbatch_tokens=config.train.microbatch_tokens,
            logit_bytes=config.train.logit_bytes,
            item_tokens=config.item_tokens,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedModule:
    """Where the layers of a module are, by name.

    Attributes:
        module: Its name in the plan.
        mesh: Size of each dimension of its mesh, the outermost first; those of one rank are left
            out. Ranks along `replicate` have equal states, those along `shard` divide them.
        stages: Names of the layers of each stage, as in the Hugging Face model.
        recomputed: Names of the layers that are computed again in the backward pass.
    """

    module: str
    mesh: dict[str, int]
    stages: tuple[tuple[str, ...], ...]
    recomputed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanInput:
    """Something that the plan was made from.

    Attributes:
        what: What it is.
        name: Its name, as given: a preset, a cluster as text, or a file.
        digest: Digest of its contents.
        file: Absolute path, if it is a file.
    """

    what: Literal["workload", "cluster", "profile"]
    name: str
    digest: str
    file: Path | None = None

    @staticmethod
    def of_file(what: Literal["workload", "cluster", "profile"], path: Path) -> PlanInput:
        """An input that is a file.

        Raises:
            OSError: The file cannot be read.
        """
        return PlanInput(what=what, name=str(path), digest=file_digest(path), file=path.absolute())


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanFile:
    """Contents of a `plan.json`.

    Attributes:
        model: Name of the model.
        model_digest: `model_digest` of its folder.
        cluster: The cluster as text; names of own types are those of its file.
        nodes: Nodes of the cluster.
        gpu_bytes: Memory of each type of GPU that the plan uses.
        inputs: What the plan was made from.
        samples: What the sizes of the samples depend on, with values or digests, if they are those
            of the data of the run; empty otherwise.
        run: What the plan assumes of the run.
        modules: The modules by the names of their layers.
        plan: The plan.
        untrained: `model_type` of the model if no family of FlowTrain trains it; otherwise empty.
    """

    model: str
    model_digest: str
    cluster: str
    nodes: int
    gpu_bytes: dict[str, int]
    inputs: tuple[PlanInput, ...]
    samples: dict[str, str]
    run: PlannedRun
    modules: tuple[PlannedModule, ...]
    plan: Plan
    untrained: str = ""


def model_digest(folder: Path) -> str:
    """Digest of the sizes in the `config.json` of a Hugging Face folder.

    Raises:
        ConfigError: There is no such file, or it is not JSON.
    """
    path = folder / "config.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; give a Hugging Face folder with a config.json"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    return digest({k: v for k, v in tree.items() if k not in _NOT_SIZES})


def file_digest(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(tree: Any) -> str:
    """Digest of values that JSON can hold."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def dump_plan(file: PlanFile) -> str:
    """The file as JSON; `read_plan` restores it."""
    tree = {"version": VERSION, **to_dict(file)}
    return json.dumps({**tree, "checksum": digest(tree)}, indent=2) + "\n"


def read_plan(path: Path) -> PlanFile:
    """Read a `plan.json`.

    Raises:
        ConfigError: The file is missing, is no plan, has another version, or was edited.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: there is no such file; `flowtrain plan --out` writes one"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path}: not a plan, which is JSON ({error}); `flowtrain plan --out` writes one"
        ) from error
    require(
        isinstance(tree, dict) and {"version", "checksum"} <= tree.keys(),
        f"{path}: not a plan, which has a version and a checksum; `flowtrain plan --out` writes "
        "one",
    )
    require(
        tree["version"] == VERSION,
        f"{path}: version={tree['version']}, and this FlowTrain reads version {VERSION}; run "
        "`flowtrain plan` again",
    )
    checksum = tree.pop("checksum")
    require(
        checksum == digest(tree),
        f"{path}: it was changed after it was written, and its times and memory no longer belong "
        "to its layout; run `flowtrain plan` with --fix for another layout",
    )
    del tree["version"]
    return build(PlanFile, tree, source=str(path))
