"""The schedule of a run's first steps, from its data and layout, without the run."""

from __future__ import annotations

from collections.abc import Iterable

from flowtrain.config.checks import require
from flowtrain.config.schema import RunConfig
from flowtrain.data.mixture import sample_order
from flowtrain.data.records import Dataset
from flowtrain.schedule import Action, HighWater, Program, check, roles_of, template_of
from flowtrain.steps import StepPlan
from flowtrain.train.assembly.offline import planned_steps
from flowtrain.train.launch.layout import with_layout
from flowtrain.train.launch.run import with_steps
from flowtrain.train.launch.threads import with_threads


def printed_schedule(config: RunConfig, steps: range) -> str:
    """What each rank of a run does in some steps, and the most that it keeps at once.

    Args:
        config: The run.
        steps: The steps; those before them are planned, too, and not printed.

    Returns:
        The text of a `Program`, with comments.

    Raises:
        ConfigError: The run cannot be planned, has fewer steps, or reads a stream.
        DataError: A sample cannot be used.
    """
    dataset = Dataset(config.data)
    if not dataset.is_stream:
        order = sample_order(config.data, dataset, seed=config.train.seed)
        config = with_steps(config, epoch_draws=order.epoch_draws)
    require(
        steps.stop <= config.train.steps,
        f"--steps {steps.start}:{steps.stop}: the run has train.steps={config.train.steps}",
    )
    config = with_layout(with_threads(config), resume=False)
    template = template_of(config)
    plans = planned_steps(config, steps.stop + template.staleness)
    plans.append(StepPlan(step=len(plans), kind="end"))
    found = {
        role.label: tuple(template.expand(role, plans.__getitem__)) for role in roles_of(config)
    }
    high = check(Program(found), late=config.flow.mode == "bounded")
    program = Program({label: _within(actions, steps) for label, actions in found.items()})
    return f"{_heading(config, found, high)}{program}"


def _within(actions: tuple[Action, ...], steps: range) -> tuple[Action, ...]:
    """What a rank does from the first of these steps to the end of the last one."""
    found: list[Action] = []
    step = 0
    for action in actions:
        if step in steps:
            found.append(action)
        step += action.kind == "forget"
    return tuple(found)


def _heading(config: RunConfig, labels: Iterable[str], high: HighWater) -> str:
    layout = config.flow.chosen
    lines = [
        f"# layout {layout}; at most at once: items and slots that wait for their backward, and "
        "records in the pool\n"
    ]
    if config.elastic:
        lines.append("# encoder.0 stands for all encoder ranks: each takes the next free item\n")
    for label in labels:
        lines.append(
            f"#   {label}: {high.items[label]} items, {high.slots[label]} slots, "
            f"{high.records[label]} records\n"
        )
    return "".join(lines)
