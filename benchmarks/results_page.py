"""Writes a page with charts from the kept results of benchmarks, `results/*.jsonl`.

Parity with plain loops (`parity_matrix.py`, `bench_connect.py`) as shares of the tolerances, and
the kernels that gather slabs on a GPU (`gpu_gather.py`). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parity_matrix import FROZEN_LOSS, TOLERANCES

from flowtrain.pages import Figure, Page, Section, write_page
from flowtrain.pages.charts.bars import divided
from flowtrain.pages.charts.dots import Dot, dots

RESULTS = Path(__file__).with_name("results")
_LEAST = 1e-10  # Of a tolerance; results that are equal to the last bit have no logarithm.
_KINDS = {"norm": "gradient norm", "weight": "weights", "eval": "held-out loss"}


def read(name: str) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(line) for line in RESULTS.joinpath(name).read_text().splitlines()]


def matrix_dots(rows: list[dict[str, Any]]) -> Iterator[Dot]:
    """Differences of the matrix of runs over their tolerances."""
    for row in rows:
        loss, weight = TOLERANCES[row["dtype"], row["optimizer"]]
        if (row["mode"], row["dtype"]) == ("frozen", "float64"):
            loss = FROZEN_LOSS
        bars = {"loss": loss, "weight": weight}
        yield from _shares(row, f"{row['model']}, {row['dtype']} {row['optimizer']}", bars)


def connect_dots(rows: list[dict[str, Any]]) -> Iterator[Dot]:
    """Differences of connected loops over their tolerances; an error was planted in some."""
    for row in rows:
        loop, rest = _loop_of(row["row"])
        name = f"{loop}, {'float64 adamw' if 'float64-adamw' in rest else 'float32 sgd'}"
        yield from _shares(row, name, row["bars"], planted=row["planted"])


def _loop_of(row: str) -> tuple[str, str]:
    """Name of the loop of a row, and the rest: its layout and what it trains."""
    for layout in ("-1+", "-2+", "-colocated"):
        if layout in row:
            loop, _, rest = row.partition(layout)
            return loop, rest
    return row, row


def _shares(
    row: dict[str, Any], name: str, bars: dict[str, float], *, planted: bool = False
) -> Iterator[Dot]:
    for kind, bar in bars.items():
        share = max(row[f"max_rel_{kind}_diff"] / bar, _LEAST)
        yield Dot(name, "planted error" if planted else _KINDS.get(kind, kind), share, row["row"])


def parity(matrix: list[dict[str, Any]], connect: list[dict[str, Any]]) -> Section:
    """How far training is from a plain loop."""
    missed = [row["row"] for row in [*matrix, *connect] if row["misses"]]
    planted = [row["row"] for row in connect if row["planted"]]
    counted = len(matrix) + len(connect) - len(planted)
    kept = counted - len(set(missed) - set(planted))
    about = (
        "Largest relative difference to a plain Hugging Face loop, over its tolerance, which is "
        "the dashed line; a dot for each run. float64 shows that the algorithm is the same, "
        "float32 what rounding adds."
    )
    title = "difference over tolerance"
    return Section(
        "Parity",
        "docs/status.md#measured",
        [
            f"{kept} of {counted} runs keep their tolerances; an error was planted in "
            f"{len(planted)} further ones, and {len(set(missed) & set(planted))} of them miss."
        ],
        [
            Figure(
                "Runs of flowtrain train",
                about,
                dots(list(matrix_dots(matrix)), title, format="~e", log=True, limit=1),
            ),
            Figure(
                "Loops and Trainers with flowtrain.connect",
                about,
                dots(list(connect_dots(connect)), title, format="~e", log=True, limit=1),
            ),
        ],
    )


def gather(rows: list[dict[str, Any]]) -> Section:
    """How fast the kernels gather slabs."""
    (conditions,) = (row["conditions"] for row in rows if "conditions" in row)
    mixed = [row for row in rows if row.get("part") == "mixed"]
    small = [row for row in rows if row.get("part") == "small"]
    rates = {
        f"{row['slab_dtype']} to {row['packed_dtype']}, {name}": {"GB/s": rate}
        for row in mixed
        for name, rate in row["gbps"].items()
    }
    times = {
        f"{row['slabs']} slabs to {row['packed_dtype']}, {name}": {
            "until the call returns": took["returned_p50_us"],
            "until it is done": took["done_p50_us"] - took["returned_p50_us"],
        }
        for row in small
        for name, took in row["wall_clock"].items()
    }
    where = f"On {', '.join(conditions['gpu'])}, torch {conditions['torch']}."
    return Section(
        "Gathering slabs on a GPU",
        "docs/gpu.md",
        [where],
        [
            Figure(
                "Large slabs",
                "Bytes read and written a second, beside a copy of as many within the device.",
                divided(rates, "GB/s", said={bar: f"{r['GB/s']:,.0f}" for bar, r in rates.items()}),
            ),
            Figure(
                "Small slabs",
                "Median time of a call for slabs of 4 to 16 KiB, beside torch.cat, which takes one "
                "tensor for each.",
                divided(times, "microseconds"),
            ),
        ],
    )


def page_of(matrix: list[dict[str, Any]], connect: list[dict[str, Any]]) -> Page:
    """The page of all kept results."""
    return Page(
        title="Kept results of benchmarks",
        subjects=[("results", "of the files in `benchmarks/results`; nothing is measured now.")],
        key={"Runs of parity": f"{len(matrix)}", "Loops of parity": f"{len(connect)}"},
        sections=[parity(matrix, connect), gather(read("gpu_gather_h200.jsonl"))],
        command="benchmarks/results_page.py",
        doc="benchmarks/README.md",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results.html"), help="file to write")
    given = parser.parse_args()
    matrix, connect = read("parity_matrix.jsonl"), read("connect.jsonl")
    print(write_page(page_of(matrix, connect), given.out, option="--out"))
    print(json.dumps({"page": str(given.out), "rows": len(matrix) + len(connect)}))


if __name__ == "__main__":
    main()
