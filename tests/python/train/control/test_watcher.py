"""Why a rank ends if another has ended."""

from __future__ import annotations

from flowtrain.train.control.ending import end_of
from flowtrain.train.control.watcher import names_another


def test_the_end_of_another_rank_is_known_as_such_also_if_that_is_elsewhere() -> None:
    for is_elsewhere in (False, True):
        assert names_another(end_of("encoder.0", 7, None, is_elsewhere=is_elsewhere))
    assert names_another(end_of("encoder.0", 7, "DataError: none"))
    assert not names_another("rank encoder.0 (pid 7) died, or so it seems")
