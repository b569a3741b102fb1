"""Flags of other programs, from plans that a reader can check by hand."""

from __future__ import annotations

import math
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from flowtrain.config.checks import ConfigError
from flowtrain.plan.export import TARGETS, Exported, exported_script
from flowtrain.plan.plan_file import PlanFile
from tests.exported import BEHIND, IN_FRONT, RUN, file_of, prefix
from tests.plans import colocated

MEGATRON, TORCHTITAN = TARGETS["megatron"], TARGETS["torchtitan"]
SIZES = "--parallelism.{}_degree"


def values(exported: Exported) -> dict[str, str]:
    """Each flag with its values."""
    return {flag[0]: " ".join(flag[1:]) for flag in exported.flags.flags}


def test_uneven_stages_become_layouts() -> None:
    plan = prefix((1, 3, 2), tp=2, dp=2)
    of_megatron = values(MEGATRON.of_plan(plan))
    assert of_megatron["--pipeline-model-parallel-layout"] == "Et*1|t*3|t*2L"
    of_titan = values(TORCHTITAN.of_plan(plan))
    assert of_titan["--parallelism.module_fqns_per_model_part"].split() == [
        "vision_encoder,tok_embeddings,layers.0",
        "layers.1,layers.2,layers.3",
        "layers.4,layers.5,norm,lm_head",
    ]
    # A first stage of the encoder alone, and a last one of the head.
    ends = values(MEGATRON.of_plan(prefix((0, 6, 0))))
    assert ends["--pipeline-model-parallel-layout"] == "E|t*6|L"
    # Stages of as many blocks need no layout, which the tower would take over there.
    even = MEGATRON.of_plan(prefix((2, 2, 2)))
    assert "--pipeline-model-parallel-layout" not in values(even)
    assert not any("vision_config" in text for text in even.flags.before)


@pytest.mark.parametrize(
    ("plan", "replicas", "shards"),
    [
        (prefix((6,), dp=8, sharding="full"), 1, 8),
        (prefix((6,), dp=8, sharding="full", shard_ranks=4), 2, 4),
        (prefix((3, 3), tp=2, dp=4), 4, 1),
    ],
)
def test_sizes_multiply_to_the_gpus(plan: PlanFile, replicas: int, shards: int) -> None:
    found = values(TORCHTITAN.of_plan(plan))
    names = ("data_parallel_replicate", "data_parallel_shard")
    assert [int(found[SIZES.format(name)]) for name in names] == [replicas, shards]
    others = ("tensor_parallel", "pipeline_parallel", "context_parallel")
    sizes = [int(found[SIZES.format(name)]) for name in (*names, *others)]
    assert math.prod(sizes) == plan.plan.gpus
    # All rows of a step: microbatches of a replica, by replicas.
    rows = plan.plan.microbatches * plan.plan.modules[0].layout.dp
    assert int(found["--training.global_batch_size"]) == rows
    # With stages, a local batch is what a pipeline runs at a time.
    local = 6 if plan.plan.modules[0].layout.pp > 1 else 1
    assert int(found["--training.local_batch_size"]) == local


def test_rows_are_as_long_as_their_parts_need() -> None:
    found = values(MEGATRON.of_plan(prefix((6,), tp=4, cp=2, dp=1)))
    # 8498 tokens at most; 4 ranks share the sequence, in 2 x 2 parts.
    assert found["--decoder-seq-length"] == found["--packing-seq-length"] == "8512"
    assert MEGATRON.of_plan(prefix((6,), tp=2)).flags.environment
    assert "--sequence-parallel" in found


def test_blocks_of_both_modules_are_computed_again() -> None:
    plan = prefix((2, 4), again=("full", "full"), dp=2, sharding="optimizer", shard_ranks=1)
    found = values(MEGATRON.of_plan(plan))
    # One number is for all stages, and reaches the largest one.
    assert found["--recompute-num-layers"] == "4" and "--recompute-vision" in found
    assert found["--num-distributed-optimizer-instances"] == "2"
    # Nothing of a frozen tower is.
    (module,) = plan.modules
    behind = tuple(name for name in module.recomputed if "visual" not in name)
    frozen = replace(
        plan,
        modules=(replace(module, recomputed=behind),),
        run=replace(RUN, trained_parts=("projector", "backbone")),
    )
    found = values(MEGATRON.of_plan(frozen))
    assert "--recompute-vision" not in found and "--freeze-ViT" in found
    with pytest.raises(
        ConfigError, match="encoder is frozen, and torchtitan 0.3.0 can freeze noth"
    ):
        TORCHTITAN.of_plan(frozen)


BLOCKS = tuple(f"model.language_model.layers.{n}" for n in range(4))
TOWER_CUT = ((*IN_FRONT[:2],), (*IN_FRONT[2:], *BLOCKS, *BEHIND))
HEAD_CUT = ((*IN_FRONT, *BLOCKS, BEHIND[0]), (BEHIND[1],))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (prefix((6,), of=colocated(4)), "mode=colocated"),
        (prefix((6,), cp=2), r"cp=2 \(it has 1\)"),
        (prefix((6,), dp=2, sharding="optimizer"), "sharding=optimizer"),
        (prefix((6,), tp=2, ep=2, dp=2, sharding="full"), "ep=2 with tp=2"),
        (prefix((2, 4), again=("full", "none")), "only some blocks"),
        (file_of(TOWER_CUT, ["none"] * 2), "stage 1 has model.visual.blocks.1"),
        (file_of(HEAD_CUT, ["none"] * 2), "stage 0 has model.language_model.norm"),
    ],
)
def test_a_plan_that_a_program_does_not_run_is_an_error(plan: PlanFile, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"does not run this plan: .*{said}.*; run `flowtrain "):
        TORCHTITAN.of_plan(plan)


def test_the_file_gives_bash_the_same_flags(tmp_path: Path) -> None:
    exported = MEGATRON.of_plan(prefix((1, 3, 2), tp=2))
    file = tmp_path / "flags.sh"
    file.write_text(exported_script(exported))
    told = 'source "$0"; printf "%s\\n" "$CUDA_DEVICE_MAX_CONNECTIONS" "${PLAN_FLAGS[@]}"'
    printed = subprocess.run(
        ["bash", "-euc", told, str(file)], check=True, capture_output=True, text=True
    ).stdout
    assert printed.splitlines() == ["1", *exported.flags.words]
    assert "t*3|" in shlex.join(exported.flags.words)
