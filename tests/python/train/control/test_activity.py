from __future__ import annotations

from flowtrain.train.control.activity import Activity


def test_a_rank_waits_when_none_of_its_threads_works() -> None:
    activity = Activity()
    assert activity.now() == (0, None)
    with activity.waiting("a plan"):
        with activity.working():
            assert activity.now() == (2, None)
        assert activity.now() == (2, "a plan")
    assert activity.now() == (2, None)
