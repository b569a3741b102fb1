"""How exact is the cost model?

FLOPs of the five families at released sizes, and of the thinker of Qwen2.5-Omni, forward and
backward, for each choice of trained parts, against what torch counts on the plain Hugging Face
models: eager attention, one document at a time, logits of all tokens, causal attention in full.
Beside each figure stands what FlowTrain counts for the same document: half of the causal pairs,
logits of target tokens alone, and no layer whose output nothing reads.

Memory of FlowTrain's own models, of moderate sizes, in float32 and bfloat16, for the same choices:
the storages of weights, master weights, gradients and moments after a step, and those of the
tensors that autograd keeps of a packed row, with and without recomputation.

Time of whole steps of the demo (`--parts step`), as tables of `flowtrain profile` predict it,
beside the account of a rank of `flowtrain train`; on an idle machine only, and not by default.

Bus bandwidth of collectives (`--parts collectives`, in no time) beside what was published of
clusters: single reports, and a table of one cluster. Nothing is run.

Tokens per second of training (`--parts training`, in no time) that was published, beside the
planner's prices from data sheets. Nothing is run.

Errors are relative, and the worst one is reported. The last line is JSON; the exit status is 1 if a
bar is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cost.counted import (
    Counted,
    counted_flops,
    counted_text_flops,
    counted_thinker_flops,
    plain_model,
    plain_thinker,
)
from cost.memory import ROWS, memory_rows
from cost.published import collective_line, collective_rows, collective_summary
from cost.released import RELEASED, qwen2_5_omni, qwen3_vl_moe
from cost.steps import step_line, step_rows, step_summary
from cost.trained import training_line, training_rows, training_summary

from flowtrain.bench.conditions import conditions
from flowtrain.cost import Counts, LayerFlops, layer_flops
from flowtrain.cost.decoder import decoder_layers
from flowtrain.cost.flops import Grid
from flowtrain.models.family import Family
from flowtrain.models.qwen2_5_omni import TOWER, Qwen25OmniThinker
from flowtrain.models.registry import family_for

BARS = {
    "flops_error": 0.01,
    "memory_error": 0.01,
    "step_error_mean": 0.08,
    "step_error_worst": 0.20,
    "collective_error": 0.25,
    "collective_sweep_error": 0.25,
    "training_A100_error": 0.15,
    "training_H100_error": 0.15,
}
PARTS = ("flops", "memory", "step", "collectives", "training")

FREEZINGS = (
    ("encoder", "projector", "backbone"),
    ("projector", "backbone"),
    ("encoder", "backbone"),
    ("encoder", "projector"),
    ("backbone",),
    ("projector",),
    ("encoder",),
)
"""Parts that train."""

OMNI = "qwen2_5_omni (thinker)"
# Grids of images, frames of a clip, tokens of a text.
_OMNI_DOCUMENTS: list[tuple[list[Grid], int, int]] = [
    ([(1, 64, 64)], 3000, 200),
    ([(1, 30, 46), (1, 16, 8)], 777, 700),
]
MOE = "qwen3_vl_moe (text)"
_MOE_TOKENS = 500

Document = tuple[list[Grid], int]
"""Grids of the images of a document, and tokens of its text."""

_QWEN: list[Document] = [
    ([(1, 64, 64)], 200),
    ([(1, 30, 46), (1, 16, 8), (1, 90, 74)], 700),
    ([(4, 36, 52)], 3000),
]
DOCUMENTS: dict[str, list[Document]] = {
    "qwen3_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "internvl": [([(1, 1, 1)], 200), ([(7, 1, 1), (3, 1, 1)], 2000)],
    "llava": [([(1, 1, 1)], 200), ([(1, 1, 1)] * 3, 2000)],
    "llava_onevision": [
        ([(5, 768, 768)], 200),
        ([(10, 1152, 1100)], 2000),
        ([(1, 300, 900), (1, 700, 200)], 500),
    ],
}


def family_of(config: Any) -> Family:
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return family_for(Path(folder))


def flops_rows(kind: str) -> Iterator[dict[str, Any]]:
    """One row for each document and choice of trained parts."""
    config = RELEASED[kind]()
    family, model = family_of(config), plain_model(config)
    for grids, text in DOCUMENTS[kind]:
        for trained in FREEZINGS:
            counted = counted_flops(family, model, grids, text, trained)
            tokens = counted.tokens
            plain = family.counts(tokens, grids, num_targets=tokens, causal_share=1.0)
            lean = family.counts(tokens, grids, num_targets=text)
            yield {
                "family": kind,
                "grids": grids,
                "tokens": tokens,
                "trained": trained,
                **compared(counted, layer_flops(family.layers, plain, trained, with_left_out=True)),
                "flowtrain_tflop": tera(layer_flops(family.layers, lean, trained)),
            }


def moe_rows() -> Iterator[dict[str, Any]]:
    """The language model of a mixture of experts, whose towers are those of Qwen3-VL."""
    model = plain_model(qwen3_vl_moe())
    # The loop over experts reads which of them were chosen; this product does not.
    model.config.text_config._experts_implementation = "batched_mm"
    counted = counted_text_flops(model, _MOE_TOKENS)
    counts = Counts(tokens=_MOE_TOKENS, pairs=_MOE_TOKENS**2, targets=_MOE_TOKENS)
    layers = decoder_layers(model.config.text_config)
    yield {
        "family": MOE,
        "grids": [],
        "tokens": _MOE_TOKENS,
        "trained": ("backbone",),
        **compared(counted, layer_flops(layers, counts, ("backbone",))),
        "flowtrain_tflop": tera(
            layer_flops(layers, counts._replace(pairs=counts.pairs / 2), ("backbone",))
        ),
    }


def omni_rows() -> Iterator[dict[str, Any]]:
    """The thinker of Qwen2.5-Omni, which is planned and not trained."""
    config = qwen2_5_omni()
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        family = Qwen25OmniThinker(Path(folder), projector_side="encoder")
    model = plain_thinker(config)
    for grids, frames, text in _OMNI_DOCUMENTS:
        for trained in FREEZINGS:
            counted = counted_thinker_flops(family, model, grids, frames, text, trained)
            tokens = counted.tokens
            plain = family.counts(tokens, grids, num_targets=tokens, causal_share=1.0)
            lean = family.counts(tokens, grids, num_targets=text)
            clip = family.audio_counts(frames)
            yield {
                "family": OMNI,
                "grids": grids,
                "tokens": tokens,
                "trained": trained,
                **compared(counted, _with_clip(family, plain, clip, trained)),
                "flowtrain_tflop": tera(_with_clip(family, lean, clip, trained)),
            }


def _with_clip(
    family: Qwen25OmniThinker, counts: Counts, clip: Counts, trained: tuple[str, ...]
) -> list[LayerFlops]:
    """FLOPs of the layers, of which the audio tower has what the clip has."""
    audio = [layer for layer in family.layers if layer.name.startswith(TOWER)]
    others = [layer for layer in family.layers if layer not in audio]
    return [*layer_flops(others, counts, trained), *layer_flops(audio, clip, trained)]


def compared(counted: Counted, ours: list[LayerFlops]) -> dict[str, float]:
    """Relative errors of both passes, and of the worst layer in the forward pass."""
    forward = sum(layer.forward for layer in ours)
    backward = sum(layer.backward for layer in ours)
    return {
        "counted_tflop": (counted.forward + counted.backward) / 1e12,
        "forward_error": abs(forward / counted.forward - 1),
        "backward_error": abs(backward / counted.backward - 1),
        "layer_error": max(
            abs(layer.forward / counted.modules[layer.name] - 1) for layer in ours if layer.forward
        ),
    }


def tera(layers: list[LayerFlops]) -> float:
    return sum(layer.forward + layer.backward for layer in layers) / 1e12


def worst(rows: list[dict[str, Any]], *names: str) -> float:
    return max((row[name] for row in rows for name in names), default=float("nan"))


def flops_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    by_case: dict[str, dict[str, float]] = {}
    for row in rows:
        errors = by_case.setdefault(row["family"], {})
        case = "+".join(row["trained"])
        error = max(row["forward_error"], row["backward_error"])
        errors[case] = max(error, errors.get(case, 0.0))
    return {
        "flops_error": worst(rows, "forward_error", "backward_error"),
        "layer_flops_error": worst(rows, "layer_error"),
        "flops_error_by_family": by_case,
    }


def memory_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    by_case: dict[str, dict[str, float]] = {}
    for row in rows:
        errors = by_case.setdefault(row["family"], {})
        errors[row["what"]] = max(row["error"], errors.get(row["what"], 0.0))
    return {"memory_error": worst(rows, "error"), "memory_error_by_family": by_case}


def flops_line(row: dict[str, Any]) -> str:
    return (
        f"{row['family']:20} {'+'.join(row['trained']):26} {row['tokens']:6} tokens  "
        f"counted {row['counted_tflop']:8.2f} TFLOP  "
        f"error {row['forward_error']:.1e} {row['backward_error']:.1e} "
        f"(layer {row['layer_error']:.1e})  FlowTrain {row['flowtrain_tflop']:8.2f}"
    )


def memory_line(row: dict[str, Any]) -> str:
    return (
        f"{row['family']:20} {'+'.join(row['trained']):26} {row['dtype']:9} {row['what']:27} "
        f"allocated {row['allocated'] / 2**20:8.2f} MiB  error {row['error']:.1e}"
    )


def main() -> int:
    sources: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        kind: lambda kind=kind: flops_rows(kind) for kind in RELEASED
    } | {OMNI: omni_rows, MOE: moe_rows}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=["flops", "memory", "collectives", "training"]
    )
    parser.add_argument("--families", nargs="+", choices=sources, default=list(sources))
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    parser.add_argument("--rounds", type=int, default=9, help="of the steps")
    parser.add_argument("--seconds", type=float, default=240, help="time for the profile")
    parser.add_argument("--seed", type=int, default=0, help="of the samples of the steps")
    parser.add_argument(
        "--profile", type=Path, help="file of a profile to continue from, and to keep"
    )
    parser.add_argument(
        "--read-ahead", action="store_true", help="read images beside the steps that count"
    )
    given = parser.parse_args()

    def shown(
        rows: Iterator[dict[str, Any]], line: Callable[[dict[str, Any]], str]
    ) -> Iterator[dict[str, Any]]:
        for row in rows:
            if not given.json:
                print(line(row), flush=True)
            yield row

    found: dict[str, Any] = {}
    if "flops" in given.parts:
        kinds = given.families
        found["flops"] = [row for kind in kinds for row in shown(sources[kind](), flops_line)]
        found |= flops_summary(found["flops"])
    if "memory" in given.parts:
        kinds = [kind for kind in given.families if kind in ROWS]
        measured = (memory_rows(kind, FREEZINGS) for kind in kinds)
        found["memory"] = [row for rows in measured for row in shown(rows, memory_line)]
        found |= memory_summary(found["memory"])
    if "step" in given.parts:
        rows, profiled = step_rows(
            rounds=given.rounds,
            seconds=given.seconds,
            seed=given.seed,
            profile=given.profile,
            read_ahead=given.read_ahead,
        )
        found["steps"] = list(shown(iter(rows), step_line))
        found |= {"profiled": profiled, **step_summary(rows)}
    if "collectives" in given.parts:
        found["collectives"] = list(shown(collective_rows(), collective_line))
        found |= collective_summary(found["collectives"])
    if "training" in given.parts:
        found["training"] = list(shown(training_rows(), training_line))
        found |= training_summary(found["training"])
    print(json.dumps({**found, "conditions": conditions()}))
    return 0 if all(found[name] <= bar for name, bar in BARS.items() if name in found) else 1


if __name__ == "__main__":
    sys.exit(main())
