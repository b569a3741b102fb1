"""Does a loop that is connected to encoder ranks train as the plain loop does?

Runs each row of the tables below and compares losses, gradient norms and final weights with those
of the plain loop (`connect_parity.py`), or of the Trainer with the whole model
(`decouple_parity.py`). Prints a line for each row; the last line is JSON. The exit
status is 1 if a row misses a bar, or if the planted error does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import torch
from connect_loop import Loop
from connect_parity import compare, plain, write_weights
from decouple_loop import HELD_OUT
from decouple_parity import compare_trainers
from parity import MODELS, MORE_TOKENS
from transformers.utils import logging

from flowtrain.bench.conditions import conditions
from flowtrain.data.digits import write_digits
from flowtrain.models.tiny import SMALLEST

BARS = {
    ("float32", "sgd"): {"loss": 1e-6, "norm": 1e-5, "weight": 1e-5},
    ("float64", "adamw"): {"loss": 1e-8, "norm": 1e-5, "weight": 2e-6},
}
"""Maximum relative differences."""
MIN_WEIGHT_CHANGE = 0.005
SEED = 7


class Row(Protocol):
    """A comparison, whose name is its text."""

    @property
    def bars(self) -> dict[str, float]:
        """Maximum relative differences."""

    @property
    def planted(self) -> bool:
        """Whether it has an error, and so has to miss a bar."""

    def measure(self, folder: Path, *, steps: int) -> dict[str, Any]:
        """Train in a folder, and compare."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopRow:
    """A connected loop; fields are those of `connect_loop.Loop`."""

    dtype: Any
    optimizer: Any
    model: str = "qwen3-vl"
    mode: Any = "strict"
    wrap: Any = "none"
    lora: bool = False
    processed: bool = False
    """Whether the samples are outputs of the model's processor."""
    ranks: int = 1
    encoder_ranks: int | None = 1
    """None with colocated ranks."""
    samples: int = 6
    max_tokens: int = 160
    """For a family that makes fewer tokens of an image."""
    evaluates: bool = False
    """Whether the model is evaluated on held-out samples after every second step."""
    resumed: bool = False
    """Whether the loop is left in the middle, and goes on in other processes."""
    planted: bool = False
    """Whether the factor of DDP's average is left in gradients of features."""

    def __str__(self) -> str:
        colocated = self.encoder_ranks is None
        layout = f"colocated-{self.ranks}" if colocated else f"{self.encoder_ranks}+{self.ranks}"
        layout += f"-{self.wrap}" * (self.wrap != "none") + "-lora" * self.lora
        layout += "-processed" * self.processed
        options = "-evaluated" * self.evaluates + "-resumed" * self.resumed
        options += "-planted-without-factor" * self.planted
        return f"{self.model}-{layout}-{self.mode}-{self.dtype}-{self.optimizer}{options}"

    @property
    def bars(self) -> dict[str, float]:
        bars = BARS[self.dtype, self.optimizer]
        return {**bars, "eval": bars["loss"]} if self.evaluates else bars

    def measure(self, folder: Path, *, steps: int) -> dict[str, Any]:
        loop = Loop(
            model=str(folder / "data" / "model"),
            data=str(folder / "data" / "train.jsonl"),
            out=str(folder),
            steps=steps,
            samples=self.samples,
            max_tokens=self.max_tokens * MORE_TOKENS[self.model],
            mode=self.mode,
            dtype=self.dtype,
            optimizer=self.optimizer,
            wrap=self.wrap,
            lora=self.lora,
            processed=self.processed,
            ranks=self.ranks,
            encoder_ranks=self.encoder_ranks,
            layout="colocated" if self.encoder_ranks is None else "decoupled",
            held_out=str(folder / "data" / "heldout.jsonl") if self.evaluates else None,
            evaluate_every=2 * self.evaluates,
            keeps_factor=self.planted,
        )
        write_data(folder / "data", samples=steps * loop.samples, model=self.model)
        return compare(loop, plain(loop), resumed=self.resumed)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerRow:
    """A Trainer whose encoder is apart; it has 6 steps."""

    dtype: Any
    optimizer: Any
    kind: str = "trainer"
    mode: str = "strict"
    ranks: int = 1
    colocated: bool = False
    evaluates: bool = False
    resumed: bool = False
    """Whether the Trainer fails, and goes on from an earlier checkpoint in other processes."""
    planted: bool = False

    def __str__(self) -> str:
        layout = f"colocated-{self.ranks}" if self.colocated else f"1+{self.ranks}"
        form = f"{self.dtype}-{self.optimizer}"
        form += "-evaluated" * self.evaluates + "-resumed" * self.resumed
        return f"decouple-{self.kind}-{layout}-{self.mode}-{form}"

    @property
    def bars(self) -> dict[str, float]:
        bars = BARS[self.dtype, self.optimizer]
        return {**bars, "eval": bars["loss"]} if self.evaluates else bars

    def measure(self, folder: Path, *, steps: int) -> dict[str, Any]:
        write_data(folder / "data", samples=96)
        return compare_trainers(
            folder,
            kind=self.kind,
            mode=self.mode,
            form=f"{self.dtype}-{self.optimizer}",
            ranks=self.ranks,
            colocated=self.colocated,
            evaluates=self.evaluates,
            resumed=self.resumed,
        )


def misses(row: Row, result: dict[str, Any]) -> list[str]:
    """Texts on the bars that a result exceeds."""
    found = [
        f"{name}={result[name]:.2g}"
        for name, bar in ((f"max_rel_{name}_diff", bar) for name, bar in row.bars.items())
        if not result[name] <= bar
    ]
    if result["weight_change"] < MIN_WEIGHT_CHANGE:
        found.append(f"weight_change={result['weight_change']:.2g}")
    return found


SGD, ADAMW = {"dtype": "float32", "optimizer": "sgd"}, {"dtype": "float64", "optimizer": "adamw"}
FAMILIES = [model for model in MODELS if model != "qwen3-vl-moe"]
# With these sizes ranks encode images for each other.
COLOCATED_2 = {"encoder_ranks": None, "ranks": 2, "samples": 5, "max_tokens": 110}
LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"ranks": 2, "wrap": "ddp"},
    {"ranks": 2, "wrap": "fsdp"},
    {"encoder_ranks": 2},
    {"resumed": True},
    {"ranks": 2, "wrap": "fsdp", "resumed": True},
    {"encoder_ranks": None},
    {**COLOCATED_2, "wrap": "ddp"},
    {**COLOCATED_2, "wrap": "fsdp"},
    {**COLOCATED_2, "wrap": "fsdp", "resumed": True},
)
LOOP_ROWS = [
    *(
        LoopRow(mode=mode, **form, **layout)
        for layout in LAYOUTS
        for form in (SGD, ADAMW)
        for mode in ("strict", "frozen")
    ),
    *(
        LoopRow(mode="frozen", lora=True, **form, **layout)
        for layout in LAYOUTS[:2]
        for form in (SGD, ADAMW)
    ),
    *(
        LoopRow(model=model, mode=mode, **form)
        for model in FAMILIES[1:]
        for form in (SGD, ADAMW)
        for mode in ("strict", "frozen")
    ),
    *(LoopRow(model=model, ranks=2, wrap="fsdp", **ADAMW) for model in FAMILIES[1:]),
    *(LoopRow(model=model, wrap="ddp", **COLOCATED_2, **ADAMW) for model in FAMILIES[1:]),
    *(LoopRow(model=model, processed=True, **ADAMW) for model in FAMILIES),
    LoopRow(wrap="ddp", processed=True, resumed=True, **SGD, **COLOCATED_2),
    *(LoopRow(model=model, evaluates=True, **ADAMW) for model in FAMILIES),
    LoopRow(evaluates=True, resumed=True, mode="frozen", **SGD),
    LoopRow(ranks=2, wrap="ddp", evaluates=True, **SGD),
    LoopRow(wrap="fsdp", evaluates=True, resumed=True, **SGD, **COLOCATED_2),
    *(LoopRow(model="qwen3-vl-moe", **form) for form in (SGD, ADAMW)),
    *(LoopRow(ranks=2, wrap="ddp", planted=True, **form) for form in (SGD, ADAMW)),
]
TRAINER_ROWS = [
    *(
        TrainerRow(mode=mode, **form, **ranks)
        for ranks in ({}, {"ranks": 2}, {"ranks": 2, "colocated": True})
        for form in (SGD, ADAMW)
        for mode in ("strict", "frozen")
    ),
    *(
        TrainerRow(kind="sft", mode=mode, **form)
        for form in (SGD, ADAMW)
        for mode in ("strict", "frozen")
    ),
    *(TrainerRow(kind="lora", mode="frozen", **form) for form in (SGD, ADAMW)),
    *(
        TrainerRow(kind=kind, ranks=ranks, mode=mode, resumed=True, **form)
        for kind, ranks in (("trainer", 1), ("trainer", 2), ("sft", 1))
        for form in (SGD, ADAMW)
        for mode in ("strict", "frozen")
    ),
    *(
        TrainerRow(kind=kind, evaluates=True, **form, **others)
        for kind, others in (
            ("trainer", {}),
            ("trainer", {"ranks": 2, "resumed": True}),
            ("trainer", {"ranks": 2, "colocated": True}),
            ("sft", {"mode": "frozen"}),
        )
        for form in (SGD, ADAMW)
    ),
]
ROWS: list[Row] = [*LOOP_ROWS, *TRAINER_ROWS]


def write_data(folder: Path, *, samples: int, model: str = "qwen3-vl") -> None:
    """Write samples, texts alone and several images among them, and a tiny model with weights."""
    write_digits(
        folder,
        train=samples,
        heldout=HELD_OUT,
        seed=SEED,
        text_only=0.2,
        multi_image=0.2,
        sizes=SMALLEST,
        family=MODELS[model],
    )
    write_weights(folder / "model")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--match", default="*", help="pattern of the names of rows, such as *fsdp*")
    parser.add_argument("--keep", type=Path, help="JSON Lines file to append each row to")
    parser.add_argument("--json", action="store_true", help="no table before the JSON line")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    kept = given.keep.read_text() if given.keep is not None and given.keep.exists() else ""
    rows, missed = [], 0
    for row in ROWS:
        if not fnmatchcase(str(row), given.match) or f'"{row}"' in kept:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = row.measure(Path(folder), steps=given.steps)
        missing = misses(row, result)
        missed += bool(missing) != row.planted
        rows.append(
            {"row": str(row), "bars": row.bars, "misses": missing, "planted": row.planted, **result}
        )
        if given.keep is not None:
            with given.keep.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
        if not given.json:
            figures = "  ".join(
                f"{name} {result[f'max_rel_{name}_diff']:.1e} (bar {bar:.0e})"
                for name, bar in row.bars.items()
            )
            said = "misses, as planted" if row.planted and missing else ", ".join(missing)
            print(f"{row!s:<56} {figures}  {said or 'ok'}", flush=True)
    print(json.dumps({"bench": "connect", "missed": missed, "rows": rows, **conditions()}))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
