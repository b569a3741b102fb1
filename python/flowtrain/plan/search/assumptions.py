"""What a search rests on, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowtrain.cost.timing import DataSheetTiming
from flowtrain.plan.describe import ModelDescription, Share
from flowtrain.plan.padding import padding
from flowtrain.plan.result import Assumption
from flowtrain.plan.space import GpuPool, Rules
from flowtrain.plan.work import Work


def assumptions_of(
    model: ModelDescription,
    work: Work,
    pools: Sequence[GpuPool],
    rules: Rules,
    tp_sizes: Sequence[int] = (),
) -> Iterator[Assumption]:
    """Numbers and rules that the prices of a search use.

    Args:
        model: The model.
        work: The step.
        pools: The GPUs.
        rules: Constants of the prices.
        tp_sizes: Sizes of tensor parallelism that are searched.
    """
    for pool in pools:
        yield from _of_pool(pool)
    share = work.share
    yield Assumption(
        name="samples",
        value=f"in the mean {share.tokens:.0f} tokens, {_encoded(share)}; the longest has "
        f"{work.longest} tokens",
        source=f"{len(work.workload)} samples of workload '{work.workload.name}'",
    )
    yield Assumption(
        name="target tokens",
        value=f"{100 * work.target_share:.0f} % of the text tokens",
        source="assumption: target_share",
    )
    yield Assumption(
        name="room in microbatches",
        value=f"a microbatch is {rules.headroom:g} times its mean at most, or the longest sample",
        source="assumption: the packing scheduler needs some room",
    )
    yield Assumption(
        name="fullest microbatch",
        value="its maximum of tokens, and images and targets three standard deviations above their "
        "share, or those of the sample with the most",
        source=f"workload '{work.workload.name}'",
    )
    yield Assumption(
        name="items of encoders",
        value=f"an encoder computes images or clips of up to {work.item_tokens} tokens at once, or "
        "a larger one alone",
        source="flow.item_tokens",
    )
    if work.cache_hits:
        yield Assumption(
            name="cached features",
            value=f"{100 * work.cache_hits:.0f} % of the images or clips are not encoded; data "
            "workers read their features beside the ranks, in no time of these",
            source="--cache-hits, or the epochs of the run and what flow.cache holds",
        )
    yield Assumption(
        name="heaviest sample",
        value="replicas that meet in each microbatch, and pipelines, wait for the heaviest sample "
        "of a batch; ranks of an encoder wait for the largest image or clip",
        source=f"drawn batches of workload '{work.workload.name}'",
    )
    yield Assumption(
        name="memory left free",
        value=f"{100 * rules.reserve_share:.0f} % of each GPU, for contexts, buffers of libraries "
        "and fragments",
        source="assumption",
    )
    yield Assumption(
        name="overlapped collectives",
        value=f"{100 * rules.exposed_share:.0f} % of the time in which computation hides them is "
        "exposed all the same, as both compete for the GPU",
        source="arXiv 2507.03114; chosen on published training, as docs/planner.md says",
    )
    yield Assumption(
        name="gradients",
        value="summed once a step, beside the last backward pass; with sharded optimizers, the "
        "weights that other replicas stepped are gathered beside the next forward pass",
        source="Megatron-LM's distributed optimizer; overlapped collectives",
    )
    yield Assumption(
        name="tensor, expert and pipeline parallelism",
        value="their communication is never hidden",
        source="assumption: the worst case",
    )
    yield Assumption(
        name="context parallelism",
        value="keys and values go round beside the attention of a block; layers in front of the "
        "backbone are computed by each of its ranks in mode prefix",
        source="Ring Attention; overlapped collectives; Megatron-LM's vision models do not share "
        "out images",
    )
    yield Assumption(
        name="full sharding",
        value="weights of blocks are gathered for each pass of each microbatch, those of other "
        "layers for the forward pass, and gradients scattered, beside the passes of the "
        "neighbouring layers",
        source="FSDP2, which reshards blocks after each pass and the root after the backward pass; "
        "overlapped collectives",
    )
    if work.optim.offload:
        yield Assumption(
            name="states in host memory",
            value=f"{rules.host.link_bytes_per_s / 1e9:g} GB/s to the host and from it for each "
            f"GPU, and {rules.host.memory_bytes_per_s / 1e9:g} GB/s of host memory for its "
            "optimizer; room for them is not checked",
            source="80 % of PCIe 4.0 x16, an assumption; data sheet of the EPYC 7742, two for "
            "eight GPUs; not measured",
        )
    yield Assumption(
        name="colocated encoders",
        value="all images of a step before the backbone's pipeline; or, where that leaves too "
        "little memory, the images of some microbatches, the backbone's passes of these, and the "
        "encoders' backward passes, and then the next ones (`at a time`); that takes no "
        "recomputation, but items are of one such part alone",
        source="the schedules of FlowTrain, docs/flow.md",
    )
    for encoder in model.encoders:
        if any(padding(encoder.heads, tp) > 1 for tp in tp_sizes):
            yield Assumption(
                name=f"heads of {encoder.name}",
                value=f"tensor parallelism pads the {encoder.heads} heads to its next multiple, at "
                "most by a third; all of its blocks is taken to grow with them",
                source="Megatron-LM pads those of InternViT-6B",
            )
    for name in model.idle:
        yield Assumption(
            name=f"encoder {name}",
            value="left out of all plans, as it has nothing to encode",
            source=f"workload '{work.workload.name}'",
        )
    if len(model.encoders) > 1:
        yield Assumption(
            name="several encoders",
            value="on ranks of their own they compute side by side, on the same ranks one after "
            "the other",
            source="no encoder reads what another one makes",
        )
    for text in model.estimated:
        yield Assumption(name="estimate", value=text, source="assumption: not measured")


def _encoded(share: Share) -> str:
    visual, audio = share.encoded["vision"], share.encoded["audio"]
    text = f"{visual.tokens:.0f} of them visual, in {visual.inputs:.2f} images of equal size"
    if audio.tokens:
        text += f", and {audio.tokens:.0f} of audio, in {audio.inputs:.2f} clips of equal size"
    return text


def _of_pool(pool: GpuPool) -> Iterator[Assumption]:
    yield Assumption(name=f"times on {pool.gpu_type}", value="of layers", source=pool.timing_source)
    if isinstance(pool.timing, DataSheetTiming):
        for name, efficiency in (
            ("products with a weight", pool.timing.linear),
            ("attention", pool.timing.attention),
        ):
            yield Assumption(
                name=f"efficiency of {name} on {pool.gpu_type}",
                value=f"{efficiency.maximum:g} n / (n + {efficiency.half:g}) of "
                f"{pool.flops_per_s / 1e12:.4g} TFLOP/s",
                source=efficiency.source,
            )
    links = pool.topology
    yield Assumption(
        name=f"links of {pool.gpu_type}",
        value=f"{links.devices_per_node} GPUs a node; {links.inside.bytes_per_s / 1e9:.4g} GB/s "
        f"and {1e6 * links.inside.latency_s:.3g} us inside, "
        f"{links.between.bytes_per_s / 1e9:.4g} GB/s and {1e6 * links.between.latency_s:.3g} us "
        "between nodes",
        source="description of the cluster",
    )
