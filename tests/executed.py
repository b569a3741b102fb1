"""The actions that the ranks of a run have executed, and those of its schedule."""

from __future__ import annotations

from pathlib import Path

from flowtrain.config.load import load
from flowtrain.events import KINDS, MODULES, TRACKS, read_run
from flowtrain.schedule import KINDS as ACTIONS
from flowtrain.schedule import Action, Program, roles_of, template_of
from flowtrain.steps import FIRST_EVALUATION, StepPlan
from flowtrain.train.state.logs import PLANS


def executed(run: Path) -> Program:
    """What the ranks have done in the steps of a run, by their events."""
    return Program(
        {
            rank.label: tuple(
                Action(
                    int(event["step"]),
                    KINDS[event["kind"]],
                    MODULES[event["module"]] or None,
                    None if event["index"] < 0 else int(event["index"]),
                    None if event["peer"] < 0 else int(event["peer"]),
                    bool(event["last"]),
                )
                for event in rank.records
                if event["track"] == TRACKS.index("actions")
                and KINDS[event["kind"]] in ACTIONS
                and event["step"] < FIRST_EVALUATION
            )
            for rank in read_run(run)
        }
    )


def scheduled(run: Path) -> Program:
    """What its schedule says, by the plans of the run."""
    config = load(run / "config.yaml")
    lines = (run / PLANS).read_text().splitlines()
    plans = [StepPlan.from_json(line) for line in lines]
    plans.append(StepPlan(step=len(plans), kind="end"))
    template = template_of(config)
    return Program(
        {role.label: tuple(template.expand(role, plans.__getitem__)) for role in roles_of(config)}
    )
