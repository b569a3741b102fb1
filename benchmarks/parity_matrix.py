"""Does training through the pool equal a plain loop for every family, layout and mode?

Runs `parity.py` for each row and compares with the tolerances. Prints a line for each row; the last
line is JSON. The exit status is 1 if a row misses a tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

from parity import MODELS, compare

from flowtrain.config.parallel import Sharding
from flowtrain.config.train import LOGIT_BYTES

# Maximum relative differences of losses and of weights.
TOLERANCES = {
    ("float32", "sgd"): (1e-6, 1e-5),
    ("float32", "adamw"): (1e-6, 1e-4),
    ("float64", "adamw"): (1e-8, 2e-6),
}
MIN_WEIGHT_CHANGE = 0.01
# A frozen encoder has no gradients whose sums could be in another order.
FROZEN_LOSS = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Arguments of `parity.py`; `ranks` of a colocated run, or else the ranks of both worlds."""

    dtype: str
    optimizer: str
    model: str = "qwen3-vl"
    tied: bool = False
    groups: bool = False
    lora: tuple[tuple[str, int], ...] = ()
    videos: bool = False
    mode: str = "strict"
    freeze: tuple[str, ...] = ()
    ranks: int | None = None
    chunk_slots: int | None = None
    encoder: str = "replicated"
    backbone: str = "replicated"
    compile: bool = False
    offload: bool = False
    logit_bytes: int = LOGIT_BYTES
    recompute_encoder: str = "none"
    recompute_backbone: str = "none"
    encoder_ranks: int = 1
    backbone_ranks: int = 1
    fault: str | None = None

    def __str__(self) -> str:
        layout = f"{self.encoder_ranks}+{self.backbone_ranks}"
        if self.ranks is not None:
            layout = f"colocated-{self.ranks}" + "-chunks" * (self.chunk_slots is not None)
        options = "-tied" * self.tied + "-groups" * self.groups + "-videos" * self.videos
        options += "-head-chunks" * (self.logit_bytes < LOGIT_BYTES)
        options += "-compiled" * self.compile + "-offload" * self.offload
        options += "".join(f"-lora-{part}-{rank}" for part, rank in self.lora)
        sharded = "".join(
            f"-{module}-{sharding}"
            for module in ("encoder", "backbone")
            if (sharding := getattr(self, module)) != "replicated"
        )
        recomputed = "".join(
            f"-{module}-recomputes-{level}"
            for module in ("encoder", "backbone")
            if (level := getattr(self, f"recompute_{module}")) != "none"
        )
        frozen = "".join(f"-without-{part}" for part in self.freeze)
        kind = f"{self.mode}{sharded}{recomputed}{frozen}"
        return f"{self.model}{options}-{layout}-{kind}-{self.dtype}-{self.optimizer}"

    def arguments(self, *, steps: int, device: str = "cpu") -> argparse.Namespace:
        """Arguments of `parity.compare`."""
        return argparse.Namespace(**asdict(self), steps=steps, device=device)

    def misses(self, result: dict[str, Any]) -> list[str]:
        """Figures of a result that miss their tolerance."""
        loss, weights = TOLERANCES[self.dtype, self.optimizer]
        if (self.mode, self.dtype) == ("frozen", "float64"):
            loss = FROZEN_LOSS
        found = {
            "max_rel_loss_diff": result["max_rel_loss_diff"] <= loss,
            "max_rel_weight_diff": result["max_rel_weight_diff"] <= weights,
            "weight_change": result["weight_change"] >= MIN_WEIGHT_CHANGE,
        }
        return [f"{name}={result[name]:.2g}" for name, holds in found.items() if not holds]


MOE = "qwen3-vl-moe"
FAMILIES = [model for model in MODELS if model != MOE]
"""Those with rows in common; Qwen3-VL with experts differs from the dense one in its MLPs alone."""
VIDEO_MODELS = [model for model in FAMILIES if model != "llava"]
FORMS = ({"dtype": "float32", "optimizer": "sgd"}, {"dtype": "float64", "optimizer": "adamw"})
LAYOUTS: tuple[dict[str, Any], ...] = ({"backbone_ranks": 2}, {"ranks": 2})
LORA = (("backbone", 4), ("encoder", 4))
VIDEO_ROWS = [
    Row(model=model, videos=True, **layout, **form)
    for model in VIDEO_MODELS
    for layout, form in zip(LAYOUTS, FORMS, strict=True)
]
QWEN_LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"encoder_ranks": 2, "backbone_ranks": 2},
    {"ranks": 2},
)

FLOAT64 = FORMS[1]
ONE_TWO, TWO_TWO, COLOCATED = LAYOUTS[0], QWEN_LAYOUTS[1], QWEN_LAYOUTS[2]
FULL = {"encoder": "full", "backbone": "full"}

SHARDED_ROWS = [
    Row(**ONE_TWO, **FLOAT64, backbone="full"),
    Row(**TWO_TWO, **FLOAT64, encoder="optimizer", backbone="optimizer"),
    Row(**TWO_TWO, **FLOAT64, **FULL, mode="frozen"),
    Row(**COLOCATED, **FLOAT64, **FULL),
    Row(model=MOE, **COLOCATED, **FLOAT64, **FULL),
    *(Row(model=model, **COLOCATED, **FLOAT64, **FULL) for model in FAMILIES[1:]),
]
"""Each layout once; `RECOMPUTED_ROWS` has 2 + 2 ranks with full sharding."""

RECOMPUTED_ROWS = [
    Row(
        recompute_encoder="full",
        recompute_backbone="full",
        logit_bytes=4000,
        **FULL,
        **TWO_TWO,
        **FLOAT64,
    ),
    Row(
        model="llava-onevision",
        recompute_encoder="selective",
        recompute_backbone="selective",
        **COLOCATED,
        **FLOAT64,
    ),
    Row(recompute_encoder="full:1", recompute_backbone="full:2", **ONE_TWO, **FORMS[0]),
]
"""Each level, alone and beside sharding."""

COMPILED_ROWS = [
    Row(
        compile=True,
        backbone="full",
        recompute_encoder="selective",
        recompute_backbone="full",
        lora=(("backbone", 4),),
        **ONE_TWO,
        **FORMS[0],
    ),
    Row(model="internvl", compile=True, **COLOCATED, **FORMS[0]),
]
"""Compiled sums have another order, in float64 as well where a model computes in float32."""

SHARDINGS = get_args(Sharding)
CROSS = [
    row
    for mode in ("strict", "frozen")
    for form in FORMS
    for backbone in SHARDINGS
    for row in (
        *((Row(**ONE_TWO, **form, mode=mode, backbone=backbone),) * (backbone != "replicated")),
        *(
            Row(**layout, **form, mode=mode, encoder=encoder, backbone=backbone)
            for layout in (TWO_TWO, COLOCATED)
            for encoder in SHARDINGS
            if (encoder, backbone) != ("replicated", "replicated")
            # A frozen encoder has no states.
            and (mode, encoder) != ("frozen", "optimizer")
        ),
    )
    if row not in SHARDED_ROWS
]
"""All strategies of both modules in all layouts, strict, and frozen with a trained projector."""

ROWS = [
    *SHARDED_ROWS,
    *(
        Row(**layout, **form, mode=mode)
        for layout in QWEN_LAYOUTS
        for form in FORMS
        for mode in ("strict", "frozen")
    ),
    # The four other families, each form in another layout.
    *(
        Row(model=model, **layout, **form)
        for model in FAMILIES[1:]
        for layout, form in zip(LAYOUTS, FORMS, strict=True)
    ),
    # A frozen tower with a trained projector.
    *(
        Row(model=model, mode="frozen", backbone_ranks=2, dtype="float64", optimizer="adamw")
        for model in ("internvl", "llava-onevision")
    ),
    Row(tied=True, encoder_ranks=2, dtype="float64", optimizer="adamw"),
    Row(groups=True, ranks=2, dtype="float64", optimizer="adamw"),
    Row(lora=LORA, **ONE_TWO, **FLOAT64),
    Row(lora=LORA, **COLOCATED, **FLOAT64, **FULL),
    *(Row(ranks=ranks, chunk_slots=1, **FORMS[ranks % 2]) for ranks in (1, 2, 3)),
    VIDEO_ROWS[0],
    Row(logit_bytes=4000, **ONE_TWO, **FLOAT64),
    *RECOMPUTED_ROWS,
    *COMPILED_ROWS,
]
"""The rows that `make test-deep` runs."""

MORE_ROWS = [
    Row(model=MOE, **ONE_TWO, **FORMS[0]),
    *(
        Row(model=model, lora=(*LORA, ("projector", 2)), ranks=2, dtype="float32", optimizer="sgd")
        for model in FAMILIES
    ),
    Row(lora=LORA[:1], mode="frozen", backbone_ranks=2, dtype="float64", optimizer="adamw"),
    *(Row(ranks=ranks, chunk_slots=1, **FORMS[1 - ranks % 2]) for ranks in (1, 2, 3)),
    *(
        Row(model=model, mode="frozen", backbone_ranks=2, dtype="float64", optimizer="adamw")
        for model in ("qwen2.5-vl", "llava")
    ),
    *VIDEO_ROWS[1:],
    *(
        Row(model=model, **layout, **form)
        for model in FAMILIES[1:]
        for layout, form in zip(LAYOUTS, reversed(FORMS), strict=True)
    ),
    *CROSS,
    *(Row(model=model, **ONE_TWO, **FORMS[0], backbone="full") for model in FAMILIES[1:]),
    *(
        Row(model=model, mode=mode, freeze=(part,), ranks=2, dtype="float64", optimizer="adamw")
        for model in FAMILIES
        for mode, part in (("frozen", "projector"), ("frozen", "backbone"), ("strict", "projector"))
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--match", default="*", help="pattern of the names of rows, such as *-full-*"
    )
    parser.add_argument("--keep", type=Path, help="JSON Lines file to append each row to")
    given = parser.parse_args()
    results, missed = [], 0
    kept = given.keep.read_text() if given.keep is not None and given.keep.exists() else ""
    for row in [*ROWS, *MORE_ROWS]:
        if not fnmatchcase(str(row), given.match) or f'"{row}"' in kept:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = compare(Path(folder), row.arguments(steps=given.steps))
        misses = row.misses(result)
        missed += bool(misses)
        results.append({"row": str(row), "misses": misses, **result})
        if given.keep is not None:
            with given.keep.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
        print(
            f"{row!s:<52} loss {result['max_rel_loss_diff']:.1e}  "
            f"weights {result['max_rel_weight_diff']:.1e}  "
            f"change {result['weight_change']:.2g}  {'MISSES' if misses else 'ok'}",
            flush=True,
        )
    print(json.dumps({"bench": "parity_matrix", "missed": missed, "rows": results}))
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
