"""What every number of the report means, and what it rests on, in words."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from flowtrain.cost.topology import Link
from flowtrain.plan.cluster import Cluster, NodeGroup
from flowtrain.plan.report.answer import Answer
from flowtrain.plan.report.step import MODEL_ERROR
from flowtrain.plan.report.words import MFU_CONVENTION
from flowtrain.plan.result import MOST_SIMULATED

_WIDTH = 100
_GIB = 1 << 30

_MEANINGS = (
    (
        "step",
        "Seconds of an optimizer step. For mean samples: the time of the first microbatch through "
        "all stages, and of all others on the longest stage, then gradients and optimizer. "
        "Simulated: sampled batches are packed by the packing scheduler, and their microbatches "
        "are replayed with their own sizes, so that imbalance counts. Nothing was run.",
    ),
    (
        "speed",
        "Tokens of a step, those of encoders too, without padding, over its time. MFU: FLOPs of "
        "the model over the data sheet's peak of all GPUs that were asked for, idle ones included: "
        f"{MFU_CONVENTION}, logits of targets alone. Where causal attention is counted in full, as "
        "in many publications, or recomputation (HFU), figures are higher for the same speed.",
    ),
    ("cost", "Hours of all GPUs that were asked for, in which 1e9 tokens are trained."),
    (
        "money",
        "GPU hours, counted in the same way, times --gpu-hour, in the currency of that.",
    ),
    (
        "proof",
        "That no plan takes less for mean samples holds for all layouts that the search considers, "
        "priced by the same model. It says nothing about layouts that are not considered, nor "
        "about errors of the model, nor about simulated steps. Simulated are the 20 best plans for "
        "mean samples, and more as long as the next one takes less for mean samples than the "
        f"shortest simulated step, but at most {MOST_SIMULATED}: each layout with a number of "
        "microbatches once. The same holds for plans with one layout for the whole model.",
    ),
    (
        "equal",
        f"A difference of less than {100 * MODEL_ERROR:g} %: the mean error of a step that is "
        "estimated from times that were just measured. Estimates from data sheets are further "
        "off, but largely in the same direction for all plans.",
    ),
    (
        "mean step",
        "What the step for mean samples is made of: encoders that run once a step, "
        "the backbone's first microbatch through all stages, the others on the longest stage, the "
        "wait for the heaviest sample, and gradients and optimizer.",
    ),
    (
        "bottleneck",
        "The module that takes the most time in a step, if it never waited, and what the time goes "
        "to; `tp`, `cp`, `ep`, `pp` and `shards` is communication that computation does not hide.",
    ),
    (
        "memory",
        "Bytes of tensors. `masters`: stored weights, if the passes have others. "
        "`activations`: what is kept for the backward passes of the microbatches in flight. "
        "`working`: the layer that "
        "is computed again, gathered weights and their gradients, or gradients of logits. `rows`: "
        "embeddings between the modules.",
    ),
    (
        "pool",
        "Rows that encoders have made and backward passes still need, and as many gradients; for "
        "each GPU of an encoder they are its `rows` in the table of memory.",
    ),
    (
        "uniform",
        "The best plan with one layout for the whole model, encoders in front of the first "
        "layers: what frameworks without module-wise layouts can run.",
    ),
    (
        "samples",
        "Whether another draw of samples would give another plan, by the test of Entrain (arXiv "
        "2605.27918): a number of samples is enough if the best of the 20 plans has the same mode "
        "and GPUs of modules for each draw of so many, with replacement. Steps change with the "
        "mean FLOPs of the draw in each module; limits of memory do not change.",
    ),
)

_COUNTS = {
    "priced": "priced exactly",
    "bounded": "left with a lower bound of their time",
    "memory": "that do not fit into memory",
    "range": "outside of the range in which times are valid",
}


def explain_text(answer: Answer) -> str:
    """What the answer rests on, as `flowtrain plan --explain` prints it."""
    lines = ["what the numbers mean"]
    for name, meaning in _MEANINGS:
        lines += _paragraph(name, meaning)
    lines += ["", "what they rest on"]
    cluster = dict(_cluster(answer.question.cluster))
    for name, value in cluster.items():
        lines += _paragraph(name, value)
    for assumption in answer.report.assumptions:
        if assumption.name not in cluster:
            lines += _paragraph(assumption.name, f"{assumption.value}. {assumption.source}")
    counts = answer.report.counts
    found = [f"{counts[name]} {what}" for name, what in _COUNTS.items() if counts.get(name)]
    lines += _paragraph("candidates", ", ".join(found))
    return "\n".join(lines) + "\n"


def _cluster(cluster: Cluster) -> Iterator[tuple[str, str]]:
    for group in cluster.groups:
        gpu = group.gpu
        yield (
            gpu.name,
            f"{gpu.memory_bytes / _GIB:.1f} GiB, {gpu.bf16_flops / 1e12:.4g} TFLOP/s in dense "
            f"bfloat16, {gpu.hbm_bytes_per_s / 1e9:.4g} GB/s of memory ({gpu.source})",
        )
        yield f"links of {gpu.name}", _links(group)


def _links(group: NodeGroup) -> str:
    topology = group.topology
    return (
        f"{_link(topology.inside)} inside a node, {_link(topology.between)} between nodes, for "
        f"each GPU ({group.source})"
    )


def _link(link: Link) -> str:
    return f"{link.bytes_per_s / 1e9:.4g} GB/s and {link.latency_s * 1e6:.3g} us"


def _paragraph(name: str, text: str) -> list[str]:
    return wrap(f"{name}: {text}", _WIDTH, initial_indent="  ", subsequent_indent="    ")
