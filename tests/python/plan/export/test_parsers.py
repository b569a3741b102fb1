"""Other programs read what is written for them; each test runs where the program is installed."""

from __future__ import annotations

import sys

import pytest

from flowtrain.plan.export import TARGETS
from flowtrain.plan.plan_file import PlanFile
from tests.exported import prefix

PLANS = {
    "stages": prefix((1, 3, 2), tp=2, dp=2),
    "again": prefix((2, 2, 2), again=("full",) * 3, tp=2, dp=2),
    "full": prefix((6,), dp=8, sharding="full", again=("full",)),
    "hybrid": prefix((6,), dp=8, sharding="full", shard_ranks=4),
}
NO_HYBRID = {name: plan for name, plan in PLANS.items() if name != "hybrid"}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_torchtitan_reads_its_options(plan: PlanFile) -> None:
    manager = pytest.importorskip("torchtitan.config.manager", exc_type=ImportError)
    pytest.importorskip("torchtitan.models.qwen3.config_registry", exc_type=ImportError)
    from torchtitan.distributed import ParallelDims

    flags = TARGETS["torchtitan"].of_plan(plan).flags
    # Its models with a vision encoder need more packages; they have the same options.
    model = ["--module", "qwen3", "--config", "qwen3_debugmodel"]
    config = manager.ConfigManager().parse_args([*model, *flags.words])
    layout = plan.plan.modules[0].layout
    dims = ParallelDims.from_config(config.parallelism, plan.plan.gpus)
    assert (dims.tp, dims.pp, dims.dp_replicate * dims.dp_shard) == (
        layout.tp,
        layout.pp,
        layout.dp,
    )
    parts = config.parallelism.module_fqns_per_model_part
    if layout.pp > 1:
        assert len(parts) == layout.pp
        assert parts[0][:3] == ["vision_encoder", "tok_embeddings", "layers.0"]
        assert parts[-1][-2:] == ["norm", "lm_head"]
    again = any(stage.recompute == "full" for stage in layout.stages)
    policy = config.activation_checkpoint
    assert (policy is not None) == again
    assert policy is None or type(policy).__qualname__ == "FullAC.Config"


@pytest.mark.parametrize("plan", NO_HYBRID.values(), ids=NO_HYBRID)
def test_megatron_reads_its_arguments(plan: PlanFile, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = pytest.importorskip("megatron.training.arguments", exc_type=ImportError)
    more = pytest.importorskip("examples.multimodal.multimodal_args", exc_type=ImportError)
    flags = TARGETS["megatron"].of_plan(plan).flags
    layout = plan.plan.modules[0].layout
    # What a script says of the model and of the run.
    others = (
        "--num-layers 6 --hidden-size 64 --num-attention-heads 8 --seq-length 256 --lr 1e-4 "
        "--max-position-embeddings 8512 --vocab-size 128 --tokenizer-type NullTokenizer "
        "--language-model-type any --tokenizer-prompt-format qwen2p5 --transformer-impl local"
    )
    monkeypatch.setattr(sys, "argv", ["train.py", *others.split(), *flags.words])
    monkeypatch.setenv("WORLD_SIZE", str(plan.plan.gpus))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    for name, value in flags.environment.items():
        monkeypatch.setenv(name, value)
    # It asks a device for its architecture.
    monkeypatch.setattr(arguments, "get_device_arch_version", lambda: 9)
    args = arguments.parse_args(more.add_multimodal_extra_args)
    arguments.validate_args(args, {})
    assert args.data_parallel_size == layout.dp
    assert args.global_batch_size == plan.plan.microbatches * layout.dp
    config = arguments.core_transformer_config_from_args(args)
    if config.pipeline_model_parallel_layout is not None:
        stages = config.pipeline_model_parallel_layout.layout
        assert [len(stage) for (stage,) in stages] == [2, 3, 3]
