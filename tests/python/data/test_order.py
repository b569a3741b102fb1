from __future__ import annotations

from flowtrain.data.order import SampleOrder


def test_every_epoch_draws_each_sample_once_and_any_cursor_can_be_read() -> None:
    order = SampleOrder(50, seed=1, shuffle=True)
    drawn = [order.index(cursor) for cursor in range(150)]
    for epoch in range(3):
        assert sorted(drawn[50 * epoch : 50 * (epoch + 1)]) == list(range(50))
    assert drawn[:50] != drawn[50:100]
    fresh = SampleOrder(50, seed=1, shuffle=True)
    assert [fresh.index(cursor) for cursor in (149, 3, 77)] == [drawn[149], drawn[3], drawn[77]]
