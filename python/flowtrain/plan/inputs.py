"""What a plan is made of, from files and the words of a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowtrain.config.checks import ConfigError, require
from flowtrain.config.dtypes import ITEMSIZES
from flowtrain.config.flow import ITEM_TOKENS
from flowtrain.config.load import from_overrides, load
from flowtrain.config.lora import Adapter
from flowtrain.config.schema import RunConfig
from flowtrain.cost.layers import PARTS
from flowtrain.plan.cluster import Cluster
from flowtrain.plan.work import MAX_BATCH, Work
from flowtrain.workloads import PRESETS, Workload, preset, read_lengths

# Batches of samples that are drawn from a preset.
_BATCHES = 8

# A run that is planned before it has a run.yaml.
_DEFAULTS: Mapping[str, Any] = {
    "run": "run",
    "model": {"dtype": "float32", "compute_dtype": "bfloat16"},
    "data": {"path": "data.jsonl"},
    "train": {"steps": 1, "global_batch": 512},
    "flow": {"item_tokens": ITEM_TOKENS["cuda"]},
}


def planned_config(words: Sequence[str], *, model: Path | None) -> RunConfig:
    """The run that is planned.

    Args:
        words: A `run.yaml`, or none, and overrides `a.b=value`.
        model: A Hugging Face folder, in place of that of the file. Without a file, the run is one
            in mixed precision with AdamW that trains everything, 512 samples a step and items as
            on GPUs, unless overrides say otherwise.

    Raises:
        ConfigError: Neither a file nor a model is given, or a field cannot be used.
    """
    files, overrides = _split(words)
    require(
        len(files) <= 1,
        f"{' '.join(files)}: give one run.yaml; overrides have the form a.b=value",
    )
    if model is not None:
        overrides = [f"model.path={model}", "model.config=null", *overrides]
    if files:
        return load(Path(files[0]), overrides)
    require(
        model is not None,
        "there is no model: give --model FOLDER with a config.json, or a run.yaml",
    )
    return from_overrides(_DEFAULTS, overrides)


def with_adapters(config: RunConfig, words: Sequence[str]) -> RunConfig:
    """The run with LoRA adapters beside those of its section `lora`.

    Args:
        config: The run.
        words: Of the form `PART=RANK`.

    Raises:
        ConfigError: A word has another form, or a part does not train or has two ranks.
    """
    for word in words:
        match = re.fullmatch(r"(\w+)=([1-9]\d*)", word)
        require(
            match is not None and match[1] in PARTS,
            f"--lora {word}: write PART=RANK, such as backbone=16; parts are {', '.join(PARTS)}",
        )
        assert match is not None
        part, rank = match[1], int(match[2])
        require(
            part in config.trained_parts,
            f"--lora {word}: model.freeze has {part}, and adapters are for a part that trains; "
            "take it out of model.freeze",
        )
        given = config.lora.ranks.get(part)
        require(
            given is None,
            f"--lora {word}: {part} has adapters of rank {given} already; give one rank for a part",
        )
        adapters: dict[str, Any] = {part: Adapter(rank=rank)}
        config = replace(config, lora=replace(config.lora, **adapters))
    return config


def chooses_tokens(words: Sequence[str]) -> bool:
    """Whether the planner chooses the tokens of a microbatch, since no file or word gives them."""
    files, overrides = _split(words)
    return not files and not any("microbatch_tokens" in word for word in overrides)


def has_file(words: Sequence[str]) -> bool:
    """Whether the words name a run.yaml."""
    return bool(_split(words)[0])


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files, and the overrides."""
    return [w for w in words if "=" not in w], [w for w in words if "=" in w]


def planned_samples(name: str | None, config: RunConfig, *, seed: int) -> Workload:
    """The samples for which a run is planned.

    Args:
        name: A preset, or a file that `flowtrain.workloads.read_lengths` reads.
        config: The run; as many samples of a preset are drawn as eight of its steps take.
        seed: Seed of a preset.

    Raises:
        ConfigError: There is no such preset or file, the file has no samples, or a step has too
            many.
        ValueError: A line of the file cannot be used.
    """
    batch = config.train.global_batch
    require(
        batch <= MAX_BATCH,
        f"train.global_batch={batch}: plans are for at most {MAX_BATCH} samples a step; plan for "
        "fewer",
    )
    known = f"presets are {', '.join(PRESETS)}"
    if name is None:
        raise ConfigError(
            "there are no samples: give --workload with a preset or a file of lengths, or a "
            f"run.yaml whose data `flowtrain data check RUN.yaml` has read; {known}"
        )
    if name in PRESETS:
        return preset(name, _BATCHES * batch, seed=seed)
    path = Path(name)
    require(path.exists(), f"--workload {name}: neither a file nor a preset; {known}")
    workload = read_lengths(path)
    require(len(workload) > 0, f"--workload {name}: the file has no samples")
    return workload


def run_work(
    config: RunConfig,
    samples: Workload,
    *,
    chooses_tokens: bool = False,
    cache_hits: float = 0.0,
) -> Work:
    """A step of a run.

    Args:
        config: The run.
        samples: Its samples, or some of them.
        cache_hits: Share of the images whose features are in a cache.
        chooses_tokens: Whether the planner chooses the tokens of a microbatch.

    Raises:
        ValueError: The samples cannot be used; the message says why.
    """
    return Work(
        workload=samples,
        batch=config.train.global_batch,
        trained=config.trained_parts,
        optim=config.optim,
        itemsize=ITEMSIZES[config.model.pass_dtype],
        stored_itemsize=ITEMSIZES[config.model.dtype],
        microbatch_tokens=None if chooses_tokens else config.train.microbatch_tokens,
        # With a cache, each image is encoded alone.
        item_tokens=config.item_tokens if config.flow.cache.path is None else 1,
        logit_bytes=config.train.logit_bytes,
        cache_hits=cache_hits,
    )


def gpu_budgets(text: str, cluster: Cluster) -> list[Cluster]:
    """Clusters of other sizes, made of the nodes of one.

    Args:
        text: `LOW..HIGH`; each budget is twice the one before, and the last one is HIGH.
        cluster: The cluster, which has one type of GPUs.

    Raises:
        ConfigError: The text has another form, or the cluster has several types.
        ValueError: A budget is neither a part of a node nor a multiple of nodes.
    """
    match = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    require(
        match is not None and 1 <= int(match[1]) <= int(match[2]),
        f"--gpus {text}: write LOW..HIGH, such as 8..256",
    )
    assert match is not None
    require(
        len(cluster.groups) == 1,
        f"--gpus {text}: cluster '{cluster}' has several types of GPUs; give a cluster with one",
    )
    budget, last = int(match[1]), int(match[2])
    found = []
    while budget < last:
        found.append(budget)
        budget *= 2
    return [Cluster(groups=(cluster.groups[0].with_gpus(gpus),)) for gpus in [*found, last]]
