"""Measured times of layers, interpolated between the sizes that were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowtrain.cost.curves import Curve, Multiples, Surface, Values
from flowtrain.cost.layers import Counts, Layer, Unit
from flowtrain.cost.measured import (
    ROWS,
    DocumentRuns,
    Line,
    RowQuery,
    Shares,
    Table,
    unit_count,
)
from flowtrain.cost.profiled import ATTENTION, Profile, ProfileError, Record, digest, kinds
from flowtrain.cost.timing import PassSeconds

_NONE_S = 1e-9
"""Time of a pass that does not exist; logarithms need one."""

_Nodes = list[tuple[float, Values]]


class Tables:
    """Times of layers from the measurements of `flowtrain profile`: a `Timing`.

    The linear work of a layer is a curve over its tokens, and its attention a surface over the
    number and the length of its documents. Both are interpolated as `Curve` says. A row of several
    lengths has one call for each run of equal documents where the device joins them. The embedding
    of the decoder has a second curve over image rows, for all that images add to a row.

    A sharded layer has the fixed cost of a call, which is its time at the smallest size, and an
    even share of the rest. This was not measured.

    Args:
        profile: The measurements.
        layers: Layers of the model.
        extrapolate: Prolong the curves beyond the sizes that were measured.

    Raises:
        ProfileError: The measurements are of another model, or lack a part of it.
    """

    def __init__(
        self, profile: Profile, layers: Sequence[Layer], *, extrapolate: bool = False
    ) -> None:
        if profile.key.model != digest(layers):
            raise ProfileError(
                f"profile of model {profile.key.model}: the layers are those of model "
                f"{digest(layers)}; profile this model"
            )
        self.profile = profile
        self.extrapolate = extrapolate
        self._kinds = kinds(layers)
        self._embedding = next((la.name for la in layers if la.part == "backbone"), None)
        by_name = {layer.name: layer for layer in layers}
        self._repeats = dict.fromkeys(self._kinds.values(), 0)
        for kind in self._kinds.values():
            self._repeats[kind] += 1
        medians = [(record, self._times(record)) for record in profile.records.values()]
        self._tables: dict[str, Table] = {}
        for kind in dict.fromkeys(self._kinds.values()):
            self._build(by_name[kind], medians)

    @staticmethod
    def load(path: Path, layers: Sequence[Layer], *, extrapolate: bool = False) -> Tables:
        """Read the file of `flowtrain profile`.

        Raises:
            ProfileError: It is no profile, or that of another model.
            OSError: It cannot be read.
        """
        return Tables(Profile.load(path), layers, extrapolate=extrapolate)

    def seconds(
        self,
        layer: Layer,
        counts: Counts,
        *,
        tp: int = 1,
        cp: int = 1,
        ep: int = 1,
        documents: Sequence[int] | None = None,
    ) -> PassSeconds:
        """Seconds of the passes of a layer.

        Args:
            layer: The layer.
            counts: Of the whole row, as `Family.counts` makes them: causal attention is half of
                the pairs.
            tp: Ranks that share the width, as if they shared the time but for its fixed part.
            cp: The same of the rows.
            ep: Only 1: no layer with experts was measured.
            documents: Tokens of each document of its attention, in order. Without them, all
                documents have the mean length of those that the tokens are in.

        Raises:
            ValueError: The layer was not measured, or the sizes are outside of those that were
                measured and `extrapolate` is false.
        """
        if ep > 1:
            raise ProfileError(
                f"{layer.name}: ep={ep}: layers with experts were not measured; use ep=1"
            )
        kind = self._kinds.get(layer.name)
        if kind is None:
            raise ProfileError(f"{layer.name}: not measured; profile the model that has it")
        labels = [kind]
        if kind + ATTENTION in self._tables:
            labels.append(kind + ATTENTION)
        if layer.name == self._embedding and counts.projected and _rows(kind) in self._tables:
            labels.append(_rows(kind))
        row = RowQuery(counts, documents, check=not self.extrapolate)
        parts = []
        for label in labels:
            times, fixed = self._table(label).seconds(row)
            fixed = np.minimum(fixed, times)
            parts.append(fixed + (times - fixed) / (tp * cp))
        forward, backward_input, backward = (float(x) for x in np.sum(parts, axis=0))
        return PassSeconds(
            forward=forward,
            backward_input=min(backward_input, backward),
            backward_weight=max(0.0, backward - backward_input),
            attention=sum(
                float(times[0])
                for label, times in zip(labels, parts, strict=True)
                if label.endswith(ATTENTION)
            ),
        )

    def summary(self) -> list[dict[str, Any]]:
        """Times at a few of the sizes that were measured.

        Returns:
            For each table the name of its layers, the unit of its sizes, and (size, forward,
            backward of the input, backward of the weights) in seconds.
        """
        return [
            {"layer": label, "unit": table.unit, "seconds": table.summary()}
            for label, table in self._tables.items()
        ]

    def update_seconds(self, parts: Mapping[str, float] | Sequence[str]) -> float:
        """Seconds of the optimizer.

        Args:
            parts: Parts that train, or the share of the parameters of each that a rank updates.

        Raises:
            ValueError: A part was not measured.
        """
        return self._of_updates(parts, "seconds")

    def accumulate_seconds(self, parts: Mapping[str, float] | Sequence[str]) -> float:
        """Seconds of adding the gradients of a microbatch to those of the ones before.

        Args:
            parts: As for `update_seconds`.

        Raises:
            ValueError: A part was not measured.
        """
        return self._of_updates(parts, "accumulate_s")

    def _of_updates(self, parts: Mapping[str, float] | Sequence[str], name: str) -> float:
        shares = parts if isinstance(parts, Mapping) else dict.fromkeys(parts, 1.0)
        total = 0.0
        for part, share in shares.items():
            if part not in self.profile.updates:
                raise ProfileError(f"optimizer of {part}: not measured; run flowtrain profile")
            total += share * float(getattr(self.profile.updates[part], name))
        return total

    def _table(self, label: str) -> Table:
        if label not in self._tables:
            raise ProfileError(
                f"{label}: no measurement yet; run flowtrain profile again, which continues"
            )
        return self._tables[label]

    def _times(self, record: Record) -> dict[str, Values]:
        """Forward, backward of inputs alone, and backward of a layer, by label."""
        sample = record.median()
        found = {}
        for label, forward in sample.forward.items():
            repeats = self._repeats[label.removesuffix(ATTENTION)]
            passes = (
                forward,
                sample.backward_input.get(label, 0.0),
                sample.backward.get(label, 0.0),
            )
            found[label] = tuple(max(_NONE_S, seconds / repeats) for seconds in passes)
        return found

    def _build(self, layer: Layer, medians: Sequence[tuple[Record, dict[str, Values]]]) -> None:
        """Tables of a kind of layer."""
        kind = layer.name
        mine = [(record, times) for record, times in medians if kind in times]
        if not mine:
            return
        if kind == self._embedding:
            texts = [(r, t[kind]) for r, t in mine if not r.counts.projected]
            if not texts:
                return
            base = Curve([(r.counts.tokens, times) for r, times in texts])
            self._tables[kind] = Line("tokens", base)
            rows: _Nodes = [
                (
                    r.counts.projected,
                    tuple(np.maximum(np.array(t[kind]) - base(r.counts.tokens), _NONE_S).tolist()),
                )
                for r, t in mine
                if r.counts.projected
            ]
            if rows:
                self._tables[_rows(kind)] = Line("projected", Curve(rows))
            return
        units = _units(layer)
        places = [tuple(unit_count(record.counts, unit) for unit in units) for record, _ in mine]
        nodes = [times[kind] for _, times in mine]
        if len(units) == 1:
            line = [(place[0], times) for place, times in zip(places, nodes, strict=True)]
            self._tables[kind] = Line(units[0], Curve(line))
        else:
            lines: dict[float, _Nodes] = {}
            for (size, part), times in zip(places, nodes, strict=True):
                # Counts are whole, so that shares of small rows are not quite those of large ones.
                share = 2.0 ** round(math.log2(part / size))
                lines.setdefault(share, []).append((size, times))
            self._tables[kind] = Shares(units[0], units[1], Surface(lines))
        self._build_attention(layer, mine)

    def _build_attention(
        self, layer: Layer, mine: Sequence[tuple[Record, dict[str, Values]]]
    ) -> None:
        unit = next((p.unit for p in layer.products if not p.has_weight), None)
        label = layer.name + ATTENTION
        if unit is None:
            return
        if unit not in ROWS:  # Windows: documents of one length.
            nodes = [(unit_count(record.counts, unit), times[label]) for record, times in mine]
            self._tables[label] = Line(unit, Curve(nodes))
            return
        equal: dict[float, _Nodes] = {}
        mixed: dict[float, _Nodes] = {}
        for record, times in mine:
            lengths = record.documents
            if len(set(lengths)) == 1:
                equal.setdefault(lengths[0], []).append((len(lengths), times[label]))
            else:
                # Of two lengths in turn; for an odd number their mean would be another line.
                middle = (min(lengths) + max(lengths)) / 2
                mixed.setdefault(middle, []).append((len(lengths), times[label]))
        if equal:
            joined = Surface(mixed) if mixed and self.profile.joins else None
            most = max(sum(record.documents) for record, _ in mine)
            self._tables[label] = DocumentRuns(unit, Multiples(equal), joined, most)


def _rows(kind: str) -> str:
    """Label of what image rows add to an embedding."""
    return f"{kind} rows"


def _units(layer: Layer) -> list[Unit]:
    """Units of the linear work of a layer."""
    found = list(dict.fromkeys(p.unit for p in layer.products if p.has_weight))
    if found:
        return found
    return ["tokens" if layer.part == "backbone" else "vision_tokens"]
