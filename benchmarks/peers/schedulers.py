"""Published schedulers of other projects.

verl and TRL need many packages beside their schedulers: they are installed without dependencies,
and the functions are extracted, unchanged, from the installed source. Conversion of samples and
results is not timed.
"""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy

CP_SAT_SECONDS = 10.0


class Call(NamedTuple):
    """The timed call of a scheduler for one step, and the conversion of its result to bins.

    Bins have shape [num_samples]; bin b is slot b // ranks of rank b % ranks.
    """

    run: Callable[[], Any]
    bins: Callable[[Any], numpy.ndarray]


# (tokens, cost, ranks, microbatches, max_tokens) -> the call for one step.
Peer = Callable[[numpy.ndarray, numpy.ndarray, int, int, int], Call]


def installed_functions(package: str, path: str, names: list[str], **known: Any) -> dict[str, Any]:
    """Extract functions and classes from an installed package's source without importing it."""
    files = importlib.metadata.files(package) or []
    found = next((file for file in files if str(file) == path), None)
    if found is None:
        raise ModuleNotFoundError(f"{package} has no {path}")
    tree = ast.parse(Path(str(found.locate())).read_text())
    body = [
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in names
    ]
    if missing := set(names) - {node.name for node in body}:
        raise ImportError(f"{package}: {path} has no {', '.join(sorted(missing))}")
    code = compile(ast.Module(body=body, type_ignores=[]), path, "exec")
    exec(code, known)
    return known


def _bins_of(parts: list[list[int]], count: int) -> numpy.ndarray:
    bins = numpy.full(count, -1)
    for number, part in enumerate(parts):
        bins[part] = number
    return bins


def _differencing() -> Callable[..., list[list[int]]]:
    import heapq

    found = installed_functions(
        "verl", "verl/utils/seqlen_balancing.py", ["karmarkar_karp"], heapq=heapq
    )
    split: Callable[..., list[list[int]]] = found["karmarkar_karp"]
    return split


def verl() -> Peer:
    """Karmarkar-Karp over ranks at equal counts, then over each rank's microbatches."""
    split = _differencing()

    def prepare(
        tokens: numpy.ndarray, cost: numpy.ndarray, ranks: int, slots: int, cap: int
    ) -> Call:
        lengths = tokens.tolist()
        work = [t * 24576 + t * t for t in lengths]  # Its own cost model.

        def run() -> list[list[int]]:
            by_rank = split(work, ranks, True)
            for count in itertools.count(slots):
                parts: list[list[int]] = [[] for _ in range(ranks * count)]
                for rank, mine in enumerate(by_rank):
                    for slot, part in enumerate(split([work[i] for i in mine], count, False)):
                        parts[slot * ranks + rank] = [mine[k] for k in part]
                if all(sum(lengths[i] for i in part) <= cap for part in parts):
                    return parts
            raise AssertionError

        return Call(run, lambda parts: _bins_of(parts, len(tokens)))

    return prepare


def verl_whole_grid() -> Peer:
    """Verl's Karmarkar-Karp on all bins at once; it ignores the cap."""
    split = _differencing()

    def prepare(
        tokens: numpy.ndarray, cost: numpy.ndarray, ranks: int, slots: int, cap: int
    ) -> Call:
        work = numpy.rint(cost / cost.max() * 2**40).astype(int).tolist()
        return Call(
            lambda: split(work, ranks * slots, False),
            lambda parts: _aligned(_bins_of(parts, len(tokens)), cost),
        )

    return prepare


def trl() -> Peer:
    """Best fit decreasing, which also copies the tokens."""
    import pyarrow
    import pyarrow.compute

    pack = installed_functions(
        "trl",
        "trl/data_utils.py",
        ["_SegmentTree", "_check_if_columns_can_be_packed", "_pack_bfd"],
        np=numpy,
        pa=pyarrow,
        pyarrow=pyarrow,
        pc=pyarrow.compute,
        deque=deque,
        defaultdict=defaultdict,
        Literal=Literal,
        Callable=Callable,
    )["_pack_bfd"]

    def prepare(
        tokens: numpy.ndarray, cost: numpy.ndarray, ranks: int, slots: int, cap: int
    ) -> Call:
        offsets = numpy.concatenate([[0], numpy.cumsum(tokens)]).astype(numpy.int32)
        ids = numpy.repeat(numpy.arange(len(tokens)), tokens)
        table = pyarrow.table(
            {"input_ids": pyarrow.ListArray.from_arrays(offsets, pyarrow.array(ids))}
        )

        def read(table: Any) -> numpy.ndarray:
            packed = table.column("input_ids").combine_chunks()
            bins = numpy.full(len(tokens), -1)
            bins[packed.values.to_numpy()] = numpy.repeat(
                numpy.arange(len(packed)), numpy.diff(packed.offsets.to_numpy())
            )
            return bins

        return Call(lambda: pack(table, cap), read)

    return prepare


def prtpy_multifit() -> Peer:
    """Multifit for the makespan; it ignores the cap."""
    import prtpy

    def prepare(
        tokens: numpy.ndarray, cost: numpy.ndarray, ranks: int, slots: int, cap: int
    ) -> Call:
        items = dict(enumerate(cost.tolist()))
        multifit = prtpy.partitioning.multifit
        return Call(
            lambda: prtpy.partition(algorithm=multifit, numbins=ranks * slots, items=items),
            lambda parts: _aligned(_bins_of(parts, len(tokens)), cost),
        )

    return prepare


def binpacking_constant_number() -> Peer:
    """Greedy into a constant number of bins; it ignores the cap."""
    import binpacking

    def prepare(
        tokens: numpy.ndarray, cost: numpy.ndarray, ranks: int, slots: int, cap: int
    ) -> Call:
        items = dict(enumerate(cost.tolist()))
        return Call(
            lambda: binpacking.to_constant_bin_number(items, ranks * slots),
            lambda parts: _aligned(_bins_of([list(part) for part in parts], len(tokens)), cost),
        )

    return prepare


def cp_sat() -> Peer:
    """OR-tools CP-SAT on the lock-step objective, under the cap, with a time limit."""
    from ortools.sat.python import cp_model

    def prepare(
        tokens: numpy.ndarray, cost: numpy.ndarray, ranks: int, slots: int, cap: int
    ) -> Call:
        return Call(lambda: solve(tokens, cost, ranks, slots, cap), lambda bins: bins)

    def solve(
        tokens: numpy.ndarray, cost: numpy.ndarray, ranks: int, slots: int, cap: int
    ) -> numpy.ndarray:
        count = ranks * slots
        scale = 10_000 * count / cost.sum()
        load = [round(float(c) * scale) for c in cost]
        start = _longest_first(tokens, cost, count, cap)
        start = _aligned(start, cost)
        model: Any = cp_model.CpModel()
        inside = [[model.NewBoolVar("") for _ in range(count)] for _ in load]
        slowest = [model.NewIntVar(0, sum(load), "") for _ in range(slots)]
        for i, row in enumerate(inside):
            model.AddExactlyOne(row)
            for b, var in enumerate(row):
                model.AddHint(var, int(start[i]) == b)
        for b in range(count):
            column = [row[b] for row in inside]
            model.Add(sum(v * x for v, x in zip(load, column, strict=True)) <= slowest[b // ranks])
            model.Add(sum(int(t) * x for t, x in zip(tokens, column, strict=True)) <= cap)
        model.Minimize(sum(slowest))
        solver: Any = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = CP_SAT_SECONDS
        if solver.Solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return start
        return numpy.array(
            [next(b for b, x in enumerate(row) if solver.BooleanValue(x)) for row in inside]
        )

    return prepare


def _longest_first(
    tokens: numpy.ndarray, cost: numpy.ndarray, count: int, cap: int
) -> numpy.ndarray:
    load, used = numpy.zeros(count), numpy.zeros(count)
    bins = numpy.full(len(tokens), -1)
    for i in numpy.argsort(-cost, kind="stable"):
        bins[i] = numpy.where(used + tokens[i] <= cap, load, numpy.inf).argmin()
        load[bins[i]] += cost[i]
        used[bins[i]] += tokens[i]
    return bins


def _aligned(bins: numpy.ndarray, cost: numpy.ndarray) -> numpy.ndarray:
    """Renumber bins by descending load, which is optimal for given bins in lock-step."""
    order = numpy.argsort(-numpy.bincount(bins, weights=cost), kind="stable")
    new = numpy.empty(len(order), int)
    new[order] = numpy.arange(len(order))
    return new[bins]


# Name: constructor, and whether to measure wall time, since it uses several threads.
PEERS: dict[str, tuple[Callable[[], Peer], bool]] = {
    "verl two-level": (verl, False),
    "verl whole grid": (verl_whole_grid, False),
    "TRL best fit decreasing": (trl, False),
    "prtpy multifit": (prtpy_multifit, False),
    "binpacking": (binpacking_constant_number, False),
    "OR-tools CP-SAT": (cp_sat, True),
}


def load_peers() -> tuple[dict[str, Peer], dict[str, str]]:
    """The installed peers, and why the others are missing."""
    found, missing = {}, {}
    for name, (load, _) in PEERS.items():
        try:
            found[name] = load()
        except (ImportError, importlib.metadata.PackageNotFoundError) as error:
            missing[name] = f"{type(error).__name__}: {error}; run: make bench-setup"
    return found, missing
