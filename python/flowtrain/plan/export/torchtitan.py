"""Plans as options of torchtitan.

Sources, all at 0.3.0: torchtitan/config/configs.py; torchtitan/distributed/pipeline_parallel.py
(`pipeline_vlm`) and fsdp.py; parallelize.py of torchtitan/models/qwen3_5, kimi_k2_7 and
muse_glimmer, the models with a vision encoder.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowtrain.cost.communication import Mesh
from flowtrain.plan.export.interface import Flag, Flags, Target
from flowtrain.plan.export.uniform import Uniform
from flowtrain.plan.plan_file import PlannedRun
from flowtrain.plan.runtime import Runtime
from flowtrain.plan.space import Space

VERSION = "0.3.0"


def _allows(mesh: Mesh, sharding: str) -> bool:
    """Ranks of experts are some of those that divide everything; tensor parallel ranks are others.

    With both, each rank would have whole experts, which the planner does not price.
    """
    return mesh.ep == 1 or (mesh.tp == 1 and sharding == "full" and not mesh.dp % mesh.ep)


SPACE = Space(
    modes=("prefix",),
    cp=(1,),  # Refused for models with a vision encoder.
    sharding=("replicated", "full"),
    chunks=False,
    runtime=Runtime(
        name="torchtitan",
        option="--export torchtitan",
        # The first stage has the vision encoder beside the embedding.
        whole_encoders=True,
        # An activation checkpointing policy wraps all blocks of the decoder and of the encoder.
        one_level=True,
        pads_towers=False,
        copies_kv=False,
        allows=_allows,
    ),
)


def flags(uniform: Uniform, run: PlannedRun) -> Flags:
    """The options of a plan, the last of which is a subcommand of tyro."""
    return Flags(
        flags=tuple(_flags(uniform, run)),
        before=tuple(_before(uniform, run)),
        missing=(*uniform.missing(), *_missing(uniform)),
    )


def module_names(uniform: Uniform) -> tuple[str, ...]:
    """Modules of each stage, joined by commas, for `module_fqns_per_model_part`."""
    stages = [[f"layers.{number}" for number in own] for own in uniform.blocks]
    stages[0] = ["vision_encoder", "tok_embeddings", *stages[0]]
    stages[-1] += ["norm", "lm_head"]
    return tuple(",".join(stage) for stage in stages)


def _flags(uniform: Uniform, run: PlannedRun) -> Iterator[Flag]:
    layout = uniform.layout
    shard = (layout.shard_ranks or layout.dp) if layout.sharding == "full" else 1
    local = uniform.plan.microbatches if layout.pp > 1 else 1
    yield "--parallelism.data_parallel_replicate_degree", str(layout.dp // shard)
    yield "--parallelism.data_parallel_shard_degree", str(shard)
    yield "--parallelism.tensor_parallel_degree", str(layout.tp)
    yield "--parallelism.pipeline_parallel_degree", str(layout.pp)
    yield "--parallelism.context_parallel_degree", str(layout.cp)
    yield "--parallelism.expert_parallel_degree", str(layout.ep)
    if layout.pp > 1:
        yield "--parallelism.pipeline_parallel_schedule", "1F1B"
        yield "--parallelism.pipeline_parallel_microbatch_size", "1"
        yield ("--parallelism.module_fqns_per_model_part", *module_names(uniform))
    yield "--training.local_batch_size", str(local)
    yield "--training.global_batch_size", str(uniform.rows)
    yield "--training.seq_len", str(uniform.row_tokens)
    yield "--training.dtype", run.dtype
    yield "--training.mixed_precision_param", run.compute_dtype
    if layout.pp > 1 or layout.ep > 1:
        yield ("--training.disable_cuda_graphs",)
    yield (f"activation_checkpoint:{'full' if uniform.recomputes else 'none'}",)


def _before(uniform: Uniform, run: PlannedRun) -> Iterator[str]:
    yield (
        "the model: --module and --config of a model with a vision encoder, such as qwen3_5, "
        "kimi_k2_7 or muse_glimmer; it has none that FlowTrain trains, so that another one needs a "
        "model of its own there, whose modules have the names that are written"
    )
    yield "the data: pack it with --dataloader.packing_buffer_size, of which a plan says nothing"
    yield "the loss: ChunkedLossWrapper, as in those configs; the plan keeps no logits of a row"
    yield "give these options behind all others, as the last one is a subcommand"
    if run.optimizer != "adamw":
        yield f"the optimizer: the plan is for {run.optimizer}; give it in the config"


def _missing(uniform: Uniform) -> Iterator[str]:
    yield (
        "sharding of the optimizer's states alone (ZeRO-1), and full sharding with stages: such "
        "plans were left out"
    )


TARGET = Target(
    name="torchtitan",
    version=VERSION,
    program="torchtitan.train",
    space=SPACE,
    if_tied={"pp": (1,)},  # Refused with stages.
    freezes=(),
    logit_bytes=None,  # Its loss is made in chunks, too.
    dtypes=(("float32", "bfloat16"), ("float32", "float32"), ("bfloat16", "bfloat16")),
    flags=flags,
)
