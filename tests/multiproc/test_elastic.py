"""Encoder ranks of a frozen run die, leave and join, and its numbers are those without that."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import forked_ranks, start_rank, trained
from support import nothing_left, run_tree

from flowtrain.config import RunConfig, from_dict
from flowtrain.events import read_accounts
from flowtrain.train.control.board import Board
from flowtrain.train.control.seats import Seats
from flowtrain.train.control.store import JobStore
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.host import RunHost
from flowtrain.train.launch.run import train
from flowtrain.train.state.logs import read_log

LIMIT_S = 60.0
LOGS = ("metrics.jsonl", "eval.jsonl", "plan.log", "final/model.safetensors")

deep = pytest.mark.deep


def elastic_tree(folder: Path, data: Path, **sections: Any) -> dict[str, Any]:
    """One epoch of 96 samples on 2 + 2 ranks, with evaluations."""
    merged = {
        "train": {"steps": 12},
        "flow": {},
        "eval": {"path": str(data / "train.jsonl"), "every": 4, "samples": 9, "keep_best": False},
    } | sections
    merged["flow"] = {"mode": "frozen", "encoder_ranks": 2, "backbone_ranks": 2} | merged["flow"]
    return run_tree(folder, data, **merged)


def check_same(first: Path, again: Path) -> None:
    """Check that two runs have the same numbers to the last digit, over each sample once."""
    for file in LOGS:
        assert first.joinpath(file).read_bytes() == again.joinpath(file).read_bytes(), file
    steps = read_log(again / "metrics.jsonl")
    assert Counter(s for step in steps for s in step["samples"]) == Counter(range(96))


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run with a single encoder rank."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    trained(elastic_tree(folder, data, flow={"encoder_ranks": 1}))
    return folder


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def wait_for_steps(folder: Path, steps: int) -> None:
    wait_until(lambda: len(read_log(folder / "metrics.jsonl")) >= steps)


@pytest.mark.parametrize(
    "fault",
    [
        "die_before_record",
        pytest.param("die_with_claims", marks=deep),
        pytest.param("die_within_record", marks=deep),
    ],
)
def test_the_items_of_a_dead_encoder_rank_are_encoded_by_another(
    fault: str,
    undisturbed: Path,
    tmp_path: Path,
    data: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tree = elastic_tree(tmp_path / "run", data, debug={"fault": f"faults:{fault}:encoder.0"})

    def meanwhile(ranks: list[ForkServerProcess]) -> None:
        [dead] = [rank for rank in ranks if rank.name == "encoder.0"]
        dead.join(LIMIT_S)
        assert dead.exitcode == -signal.SIGKILL
        ranks.remove(dead)

    with nothing_left():
        train(from_dict(tree), run_ranks=partial(forked_ranks, meanwhile=meanwhile))
    check_same(undisturbed, tmp_path / "run")
    assert "rank encoder.0 (pid " in capfd.readouterr().err


def test_encoder_ranks_join_and_leave(undisturbed: Path, tmp_path: Path, data: Path) -> None:
    debug = {"fault": "faults:hold_twice:backbone.0", "delay_ms": 10.0}
    config = from_dict(elastic_tree(tmp_path / "run", data, debug=debug))

    def run_ranks(config: RunConfig, host: RunHost, *, resume: bool) -> None:
        store = JobStore(host.job.address, host.job.nonce, timeout_s=10.0)

        seats = Seats(store)

        def join(ranks: list[ForkServerProcess], name: str) -> ForkServerProcess:
            rank = start_rank(config, host.job, "encoder", seats.reserve().rank, joins=True)
            ranks.append(rank)
            assert rank.name == name
            wait_until(lambda: all(seat.is_ready for seat in seats.all()))
            return rank

        def meanwhile(ranks: list[ForkServerProcess]) -> None:
            joined = join(ranks, "encoder.2")
            dead = [rank for rank in ranks if rank.name in ("encoder.0", "encoder.1")]
            for rank in dead:
                rank.kill()
                ranks.remove(rank)
            store.put("go", True)
            wait_for_steps(config.run, 8)
            # Another one takes the place of a rank that is gone.
            wait_until(lambda: [seat.label for seat in seats.all()] == [joined.name])
            join(ranks, "encoder.0")
            joined.terminate()
            store.put("go on", True)
            joined.join(LIMIT_S)
            assert joined.exitcode == 0

        forked_ranks(config, host, resume=resume, meanwhile=meanwhile)

    with nothing_left():
        train(config, run_ranks=run_ranks)
    check_same(undisturbed, config.run)
    accounts = read_accounts(config.run)
    assert accounts["encoder.2"].seconds["encode"] > 0
    assert {"encoder.0", "encoder.1", "encoder.2"} < accounts.keys()


@deep
@pytest.mark.parametrize("fault", ["stop_before_publish", "stop_before_record"])
def test_a_late_twin_of_a_claim_is_refused(
    fault: str,
    undisturbed: Path,
    tmp_path: Path,
    data: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """An encoder rank is stopped, its item is issued again, and then it goes on."""
    config = from_dict(
        elastic_tree(
            tmp_path / "run", data, flow={"timeout_s": 4.0}, debug={"fault": f"faults:{fault}"}
        )
    )

    def run_ranks(config: RunConfig, host: RunHost, *, resume: bool) -> None:
        store = JobStore(host.job.address, host.job.nonce, timeout_s=10.0)

        def claimant() -> int:
            return next(seat.claimant for seat in Seats(store).all() if seat.rank == 0)

        def meanwhile(ranks: list[ForkServerProcess]) -> None:
            before = claimant()
            wait_until(lambda: Board(store, first=0).is_gone(before))
            # The readers get the item from the other rank.
            wait_for_steps(config.run, 2)
            [stopped] = [rank.pid for rank in ranks if rank.name == "encoder.0"]
            os.kill(stopped, signal.SIGCONT)
            # It was told that its claim is void.
            wait_until(lambda: claimant() != before)
            store.put("go", True)

        forked_ranks(config, host, resume=resume, meanwhile=meanwhile)

    with nothing_left():
        train(config, run_ranks=run_ranks)
    check_same(undisturbed, config.run)
    assert "has not beaten for flow.timeout_s=4 s" in capfd.readouterr().err


def test_a_run_without_encoder_ranks_is_saved_and_goes_on_later(
    undisturbed: Path, tmp_path: Path, data: Path
) -> None:
    tree = elastic_tree(
        tmp_path / "run",
        data,
        flow={"encoder_ranks": 1, "timeout_s": 6.0},
        debug={"fault": "faults:die_in_seventh_step:encoder.0"},
    )

    def meanwhile(ranks: list[ForkServerProcess]) -> None:
        [dead] = [rank for rank in ranks if rank.name == "encoder.0"]
        dead.join(LIMIT_S)
        ranks.remove(dead)

    with nothing_left(), pytest.raises(RunFailed, match="no encoder rank was there") as error:
        train(from_dict(tree), run_ranks=partial(forked_ranks, meanwhile=meanwhile))
    steps = len(read_log(tmp_path / "run" / "metrics.jsonl"))
    assert steps == 6
    assert f"after {steps} of 12 steps, which are saved" in str(error.value)
    trained({**tree, "debug": {}}, resume=True)
    check_same(undisturbed, tmp_path / "run")


@deep
@pytest.mark.limit(480)
@pytest.mark.parametrize("seed", range(3))
def test_random_deaths_leaves_and_joins_change_no_number(
    seed: int, undisturbed: Path, tmp_path: Path, data: Path
) -> None:
    """20 of them, at any instruction."""
    debug = {"fault": "faults:hold_twice:backbone.0", "delay_ms": 150.0}
    config = from_dict(elastic_tree(tmp_path / "run", data, debug=debug))
    chance = random.Random(seed)
    done: Counter[str] = Counter()

    def run_ranks(config: RunConfig, host: RunHost, *, resume: bool) -> None:
        store = JobStore(host.job.address, host.job.nonce, timeout_s=10.0)

        def meanwhile(ranks: list[ForkServerProcess]) -> None:
            store.put("go", True)
            while done.total() < 20:
                time.sleep(chance.uniform(0, 0.3))
                encoders = [rank for rank in ranks if rank.name.startswith("encoder")]
                kind = chance.choice(["kill", "leave", "join"])
                if kind == "join" or not encoders:
                    seat = Seats(store).reserve()
                    ranks.append(start_rank(config, host.job, "encoder", seat.rank, joins=True))
                    done["join"] += 1
                    continue
                victim = chance.choice(encoders)
                # Ranks of the start have no launcher: there SIGTERM means the whole run.
                if kind == "leave" and victim in first:
                    continue
                os.kill(victim.pid, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
                ranks.remove(victim)
                ended.append(victim)
                done[kind] += 1
            if not any(rank.name.startswith("encoder") for rank in ranks):
                seat = Seats(store).reserve()
                ranks.append(start_rank(config, host.job, "encoder", seat.rank, joins=True))
            store.put("go on", True)

        ended: list[ForkServerProcess] = []
        first: list[ForkServerProcess] = []

        def begin(ranks: list[ForkServerProcess]) -> None:
            first.extend(ranks)
            meanwhile(ranks)

        forked_ranks(config, host, resume=resume, meanwhile=begin)
        for rank in ended:
            rank.join(LIMIT_S)
            assert rank.exitcode in (0, -signal.SIGKILL, -signal.SIGTERM), rank.name

    with nothing_left():
        train(config, run_ranks=run_ranks)
    assert done.total() == 20
    check_same(undisturbed, config.run)
