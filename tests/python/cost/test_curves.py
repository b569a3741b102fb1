from __future__ import annotations

import numpy as np
import pytest

from flowtrain.cost.curves import Curve, Multiples, Surface

SIZES = [2.0, 4.0, 8.0, 16.0, 32.0]


def test_a_curve_passes_through_its_nodes() -> None:
    nodes = [(size, (3.0 + size, 1 / size)) for size in reversed(SIZES)]
    curve = Curve(nodes)
    assert curve.sizes == pytest.approx(SIZES)
    for size, times in nodes:
        assert tuple(curve(size)) == pytest.approx(times, rel=1e-12)


def test_a_curve_is_monotone_where_its_nodes_are_and_never_overshoots() -> None:
    curve = Curve([(1, (1.0,)), (2, (1.0001,)), (4, (50.0,)), (8, (51.0,))])
    times = [float(curve(size)[0]) for size in np.geomspace(1, 8, 400)]
    assert times == sorted(times)
    assert (min(times), max(times)) == pytest.approx((1.0, 51.0))


@pytest.mark.parametrize("power", [1, 2])
def test_a_fixed_cost_and_a_power_are_interpolated_within_the_stated_error(power: int) -> None:
    curve = Curve([(size, (100.0 + size**power,)) for size in 2.0 ** np.arange(0, 14)])
    errors = [
        float(curve(size)[0]) / (100.0 + size**power) - 1 for size in np.geomspace(1, 2**13, 999)
    ]
    assert min(errors) > -1e-9 and max(errors) < (0.0151 if power == 1 else 0.061)


def test_nodes_of_nearly_one_size_are_one() -> None:
    curve = Curve([(100, (4.0,)), (101, (9.0,)), (200, (20.0,))])
    assert len(curve.sizes) == 2
    assert curve(curve.smallest)[0] == pytest.approx(6.0)


def test_a_surface_passes_through_its_nodes_and_is_exact_for_powers() -> None:
    lines = {
        length: [(count, (count * length**2, 7.0)) for count in (1.0, 4.0, 64.0)]
        for length in (8.0, 32.0, 256.0)
    }
    surface = Surface(lines)
    for length, nodes in lines.items():
        for count, times in nodes:
            assert tuple(surface(count, length)) == pytest.approx(times, rel=1e-12)
    assert tuple(surface(11.0, 100.0)) == pytest.approx((11.0 * 100.0**2, 7.0))
    assert tuple(surface(128.0, 512.0)) == pytest.approx((128.0 * 512.0**2, 7.0))


def test_a_size_at_which_one_thing_was_measured_refines_the_times_of_many() -> None:
    # Eight things of size 8 and 32 take four times as long as one, and one of size 16 is a bump.
    lines = {
        8.0: [(1, (2.0,)), (8, (8.0,))],
        16.0: [(1, (7.0,))],
        32.0: [(1, (8.0,)), (8, (32.0,))],
    }
    times = Multiples(lines)
    for size, nodes in lines.items():
        for number, wanted in nodes:
            assert times(number, size)[0] == pytest.approx(wanted[0])
    assert times(8, 16)[0] == pytest.approx(4 * 7.0)


def test_of_things_that_were_measured_alone_many_take_as_many_times() -> None:
    assert Multiples({8.0: [(1, (2.0,))]})(3, 8.0)[0] == pytest.approx(6.0)


@pytest.mark.parametrize("nodes", [[], [(0, (1.0,))], [(1, (0.0,))]])
def test_what_has_no_logarithm_is_refused(nodes: list[tuple[float, tuple[float]]]) -> None:
    with pytest.raises(ValueError, match="sizes and times above 0"):
        Curve(nodes)
