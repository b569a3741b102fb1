"""Plans as arguments of Megatron-LM.

Sources, all at the tag core_v0.19.0: megatron/training/arguments.py; examples/multimodal, whose
train.py trains models of one tower, a projector and a decoder; in megatron/core,
models/multimodal/llava_model.py and transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowtrain.cost.communication import Mesh
from flowtrain.plan.export.interface import Flag, Flags, Target
from flowtrain.plan.export.uniform import Uniform
from flowtrain.plan.plan_file import PlannedRun
from flowtrain.plan.runtime import Runtime
from flowtrain.plan.space import Space

VERSION = "0.19.0"

_WHOLE = 1 << 50
"""`train.logit_bytes` of runs whose logits are never made in chunks."""


def _allows(mesh: Mesh, sharding: str) -> bool:
    """Full sharding is that of torch (`--use-torch-fsdp2`), which has no expert parallelism."""
    return sharding != "full" or mesh.ep == 1


SPACE = Space(
    modes=("prefix",),
    chunks=False,
    runtime=Runtime(
        name="Megatron-LM",
        option="--export megatron",
        # The tower is part of the first stage; the layout has one embedding and one loss.
        whole_encoders=True,
        # `--recompute-num-layers` is one number for the decoder's blocks of all stages, and
        # `--recompute-vision` is for all of the tower's.
        one_level=True,
        pads_towers=False,
        allows=_allows,
    ),
)


def flags(uniform: Uniform, run: PlannedRun) -> Flags:
    """The arguments of a plan."""
    layout = uniform.layout
    full = layout.sharding == "full"
    meets = layout.tp > 1 or layout.cp > 1
    return Flags(
        flags=tuple(_flags(uniform, run)),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if meets and not full else {},
        before=tuple(_before(uniform, run)),
        missing=(*uniform.missing(), *_missing(uniform, run)),
    )


def layout_string(uniform: Uniform) -> str:
    """Stages for `--pipeline-model-parallel-layout`: embedding, blocks, and loss."""
    stages = [f"t*{len(own)}" if own else "" for own in uniform.blocks]
    return "|".join(["E" + stages[0], *stages[1:]]) + "L"


def _flags(uniform: Uniform, run: PlannedRun) -> Iterator[Flag]:
    layout = uniform.layout
    yield "--tensor-model-parallel-size", str(layout.tp)
    yield "--pipeline-model-parallel-size", str(layout.pp)
    yield "--context-parallel-size", str(layout.cp)
    if layout.ep > 1:
        yield "--expert-model-parallel-size", str(layout.ep)
        yield "--expert-tensor-parallel-size", str(layout.tp)
    if layout.tp > 1:
        yield ("--sequence-parallel",)
    if not uniform.is_even:
        yield "--pipeline-model-parallel-layout", layout_string(uniform)
    if layout.sharding == "optimizer":
        yield ("--use-distributed-optimizer",)
        if layout.shard_ranks is not None and layout.shard_ranks < layout.dp:
            instances = layout.dp // layout.shard_ranks
            yield "--num-distributed-optimizer-instances", str(instances)
    elif layout.sharding == "full":
        yield ("--use-torch-fsdp2",)
        yield ("--no-gradient-accumulation-fusion",)
        yield ("--untie-embeddings-and-output-weights",)
        yield "--ckpt-format", "torch_dist"
    yield "--micro-batch-size", "1"
    yield "--global-batch-size", str(uniform.rows)
    yield "--decoder-seq-length", str(uniform.row_tokens)
    yield "--packing-seq-length", str(uniform.row_tokens)
    if "backbone" in uniform.recomputes:
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "block"
        yield "--recompute-num-layers", str(max(map(len, uniform.blocks)))
    if "encoder" in uniform.recomputes:
        yield ("--recompute-vision",)
    if run.compute_dtype == "bfloat16":
        yield ("--bf16",)
    if "encoder" not in run.trained_parts:
        yield ("--freeze-ViT",)
    if "backbone" not in run.trained_parts:
        yield ("--freeze-LM",)


def _before(uniform: Uniform, run: PlannedRun) -> Iterator[str]:
    yield (
        "the model: give its sizes and its tower to examples/multimodal, which has models like "
        "LLaVA, with one projector; deepstack and M-RoPE are not among them; and "
        f"--max-position-embeddings {uniform.row_tokens} at least"
    )
    yield "the data: pack it with --packing-buffer-size, of which a plan says nothing"
    if not uniform.is_even:
        yield (
            "examples/multimodal/model.py makes the tower's config a copy of the decoder's, layout "
            "included: set vision_config.pipeline_model_parallel_layout = None there, or the tower "
            "has as many blocks as the first stage"
        )
    if uniform.layout.ep > 1:
        yield (
            "examples/multimodal/layer_specs.py has no experts: give the decoder the specs of "
            "pretrain_vlm.py, which has"
        )
    if uniform.layout.tp > 1 or uniform.layout.cp > 1:
        yield "sequence and context parallelism need Transformer Engine (--use-te)"
    if run.optimizer != "adamw":
        yield f"the optimizer: the plan is for {run.optimizer}; give --optimizer"


def _missing(uniform: Uniform, run: PlannedRun) -> Iterator[str]:
    if run.logit_bytes < _WHOLE:
        yield (
            f"logits in chunks: the plan has {run.logit_bytes} bytes of them at most "
            "(train.logit_bytes), and there a rank has those of a whole row"
        )
    if uniform.layout.sharding != "full" and uniform.layout.dp > 1:
        yield (
            "sums of gradients behind the last backward pass: --overlap-grad-reduce hides them, "
            "and waits for gradients of the tower, which a row without images does not make"
        )


TARGET = Target(
    name="megatron",
    version=VERSION,
    program="examples/multimodal/train.py",
    space=SPACE,
    # --use-torch-fsdp2 requires --untie-embeddings-and-output-weights.
    if_tied={"sharding": ("replicated", "optimizer")},
    freezes=("encoder", "backbone"),
    logit_bytes=_WHOLE,
    dtypes=(("float32", "bfloat16"), ("float32", "float32")),
    flags=flags,
)
