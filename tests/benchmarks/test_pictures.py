"""The pictures of the README."""

from __future__ import annotations

import numpy
import pytest
from drawn.timeline import flattened
from pictures import PICTURES, packing_of

from flowtrain.observe.report.timeline import Slice


def test_what_is_drawn_last_is_seen_and_neighbours_of_a_kind_are_one() -> None:
    spans = [
        (0.0, 100.0, "other work"),
        (10.0, 60.0, "backbone passes"),
        (20.0, 30.0, "wait: record"),
        (60.0, 60.5, "records"),  # Too short.
        (60.5, 90.0, "backbone passes"),
        (90.0, 95.0, "wait: planner"),
    ]
    slices = [Slice("a", start, end, group, "") for start, end, group in spans]
    assert flattened(slices, 1.0) == [
        (0.0, 10.0, "other"),
        (10.0, 20.0, "backbone passes"),
        (20.0, 30.0, "waiting"),
        (30.0, 90.0, "backbone passes"),
        (90.0, 100.0, "other"),
    ]


def test_both_orders_have_all_samples_and_the_packed_one_ends_first() -> None:
    panels = packing_of()["vconcat"]
    samples, ends = [], []
    for panel in panels:
        rows = panel["layer"][0]["data"]["values"]
        lengths = [row["to"] - row["from"] for row in rows if row["kind"].startswith("a sample")]
        samples.append(len(lengths))
        ends.append(max(row["to"] for row in rows))
        assert numpy.sum(lengths) / 8 == pytest.approx(1, abs=0.01)
    assert samples == [128, 128]
    assert ends[0] > 1.2
    assert ends[1] == pytest.approx(1)


@pytest.mark.parametrize("name", ["timeline", "packing"])
def test_a_committed_picture_is_small_and_white(name: str) -> None:
    text = PICTURES.joinpath(f"{name}.svg").read_text()
    assert len(text) < 100_000
    assert 'fill="white"/>' in text[:400]
    assert "href" not in text
