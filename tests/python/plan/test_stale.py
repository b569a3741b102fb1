"""Plans that are not for what a run finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plans import GIB, RUN, colocated, plan_file

from flowtrain.config import ConfigError
from flowtrain.plan.plan_file import PlanFile, PlanInput
from flowtrain.plan.stale import Seen, SeenGpus, check_seen

PLAN = Path("plan.json")
GPUS = SeenGpus(count=4, gpu_type="H100", memory_bytes=int(79.4 * GIB))
SAMPLES = {"the contents of a.jsonl": "1", "data.min_pixels": "null"}
SEEN = Seen(samples=SAMPLES, gpus=GPUS)


def made(**more: Any) -> PlanFile:
    return plan_file(colocated(4), "0", RUN, **{"samples": SAMPLES, **more})


def test_a_plan_is_good_for_what_it_was_made_for() -> None:
    assert check_seen(made(), SEEN, path=PLAN) == []


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (
            replace(SEEN, samples={**SAMPLES, "the contents of a.jsonl": "2", "data.fps": "3"}),
            "plan.json: the plan is for other samples, as these changed: the contents of a.jsonl, "
            "data.fps; run `flowtrain data check RUN.yaml` and then `flowtrain plan RUN.yaml`",
        ),
        (
            replace(SEEN, gpus=replace(GPUS, count=2)),
            "plan.json: the plan is for 4 GPUs, and this machine has 2; run `flowtrain plan`",
        ),
        (
            replace(SEEN, gpus=replace(GPUS, gpu_type="A100-80GB")),
            "plan.json: the plan is for H100, and this machine has A100-80GB; run",
        ),
        (
            replace(SEEN, gpus=replace(GPUS, memory_bytes=int(40 * GIB))),
            "plan.json: the plan is for H100 of 80.0 GiB, and those of this machine have 40.0 GiB;",
        ),
    ],
)
def test_a_plan_for_other_samples_or_gpus_is_refused(seen: Seen, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_seen(made(), seen, path=PLAN)
    assert str(caught.value).startswith(said)


def test_a_cluster_of_which_the_figures_are_others_now_is_refused() -> None:
    old = PlanInput(what="cluster", name="1x8xH100", digest="of an older table")
    with pytest.raises(ConfigError, match=r"plan\.json: cluster 1x8xH100: the plan has other fig"):
        check_seen(made(inputs=(old,)), SEEN, path=PLAN)


@pytest.mark.parametrize("what", ["workload", "cluster", "profile"])
def test_a_file_that_was_changed_since_is_refused_and_one_that_is_gone_is_named(
    what: Any, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    plan = made(inputs=(PlanInput.of_file(what, path),))
    assert check_seen(plan, SEEN, path=PLAN) == []
    path.write_text("now")
    with pytest.raises(ConfigError, match=rf"plan\.json: {what} {path} was changed after the plan"):
        check_seen(plan, SEEN, path=PLAN)
    path.unlink()
    assert check_seen(plan, SEEN, path=PLAN) == [f"{what} {path}, which is gone"]


def test_another_profile_of_the_run_is_refused(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine.json", tmp_path / "other.json"
    mine.write_text("1")
    other.write_text("2")
    plan = made(inputs=(PlanInput.of_file("profile", mine),))
    assert check_seen(plan, replace(SEEN, profile=mine), path=PLAN) == []
    with pytest.raises(
        ConfigError, match=r"flow\.profile=\S*other\.json is not the profile \S*mine"
    ):
        check_seen(plan, replace(SEEN, profile=other), path=PLAN)


def test_what_a_run_cannot_know_is_said_and_not_refused() -> None:
    unknown = Seen(samples="a.jsonl is gone", gpus="model.device=cpu")
    assert check_seen(made(), unknown, path=PLAN) == [
        "the samples (a.jsonl is gone)",
        "the GPUs (model.device=cpu)",
    ]
    assert check_seen(made(samples={}), SEEN, path=PLAN) == [
        "the samples, since the plan is for those of native"
    ]
    own = made(gpu_bytes={"toy": 1})
    toys = replace(SEEN, gpus=replace(GPUS, gpu_type="a GPU of no table"))
    assert check_seen(own, toys, path=PLAN) == ["the type of the GPUs, toy"]
