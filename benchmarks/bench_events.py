"""How much time do events take?

Measures the time of one span that is written to a file, and counts the spans in a step of the demo:
the actions of its schedule, and what is nested in them, from the events of a short run. Their
product, as a share of the time of a step, is the cost. `--toggle` measures the cost of writing
directly, too: it trains while events are written in one half of the steps. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import event_switch
import numpy

from flowtrain.bench.conditions import conditions
from flowtrain.config import RunConfig, load
from flowtrain.data.digits import write_digits
from flowtrain.events import TRACKS, Attempt, EventFile, EventLog, read_run
from flowtrain.schedule import Action, roles_of, template_of
from flowtrain.steps import StepPlan
from flowtrain.train.assembly.offline import planned_steps
from flowtrain.train.demo import demo_config
from flowtrain.train.launch.run import train
from flowtrain.train.state.logs import TIMING, read_log

WARMUP = 4
SPANS, ROUNDS = 20_000, 9
RESAMPLES = 10_000


def span_ns(folder: Path) -> float:
    """Time of a span, the median of several rounds."""
    path = folder / "encoder.0.events"
    log = EventLog()
    attempt = Attempt(number=0, pid=os.getpid(), clock_offset_ns=0)
    log.attach(EventFile(path, "encoder.0", attempt, keep_steps=1))
    action = Action(0, "encode", "encoder", 0)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(SPANS):
            # Spans of a run are so far apart that each reads the clock of its thread twice.
            log._cpu_at = 0
            log.begin_action(action)
            log.end()
        times.append((time.perf_counter_ns() - start) / SPANS)
    log.close()
    return statistics.median(times)


def actions_per_step(config: RunConfig) -> dict[str, float]:
    """Actions of each rank's schedule in a step, the mean over the steps of a run."""
    template = template_of(config)
    steps = config.train.steps
    plans = [*planned_steps(config, steps), StepPlan(step=steps, kind="end")]
    return {
        role.label: len(tuple(template.expand(role, plans.__getitem__))) / steps
        for role in roles_of(config)
    }


def spans_per_step(config: RunConfig) -> dict[str, float]:
    """Spans of each rank's main thread in a step, from the events of a run."""
    steps = range(WARMUP, config.train.steps)
    found = {}
    for rank in read_run(config.run):
        records = rank.records
        own = records["track"] <= TRACKS.index("waits")
        own &= (records["step"] >= steps.start) & (records["step"] < steps.stop)
        found[rank.label] = int(own.sum()) / len(steps)
    return found


def trained(folder: Path, name: str, *overrides: str) -> RunConfig:
    """Train with the demo's configuration; its data are in the folder.

    Returns:
        The configuration of the run, with its layout.
    """
    run = folder / name
    train(demo_config(folder, [*overrides, f"run={run}"]))
    return load(run / "config.yaml")


def seconds_of(config: RunConfig) -> list[float]:
    return [line["seconds"] for line in read_log(config.run / TIMING)]


def cost_of_writing(config: RunConfig) -> dict[str, Any]:
    """Cost of writing in percent of a step, with its 95 % interval, over pairs of blocks.

    Source of the interval: percentile bootstrap, Efron (1979).
    """
    size = event_switch.BLOCK_STEPS
    lines = read_log(config.run / TIMING)
    # Steps differ in tokens; the first one of a block may still have events of the block before.
    rates = [
        sum(line["seconds"] for line in lines[at + 1 : at + size])
        / sum(line["tokens"] for line in lines[at + 1 : at + size])
        for at in range(0, len(lines) - size + 1, size)
    ]
    blocks = [*enumerate(rates)][2:]  # The first pair has the warm-up.
    ratios = []
    for (at, first), (_, second) in [*pairwise(blocks)][::2]:
        on, off = (first, second) if event_switch.is_written(at * size) else (second, first)
        ratios.append(100 * (on / off - 1))
    draw = numpy.random.default_rng(0)
    means = draw.choice(ratios, (RESAMPLES, len(ratios))).mean(axis=1)
    low, high = numpy.percentile(means, (2.5, 97.5))
    return {
        "writing_percent": round(statistics.mean(ratios), 3),
        "writing_percent_low": round(float(low), 3),
        "writing_percent_high": round(float(high), 3),
        "pairs": len(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="steps of the short run")
    parser.add_argument("--toggle", action="store_true", help="measure the cost of writing, too")
    parser.add_argument("--toggle-steps", type=int, default=800, help="steps with --toggle")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    if given.steps <= WARMUP:
        parser.error(f"--steps {given.steps}: must be above {WARMUP}, which are not measured")
    least = 8 * event_switch.BLOCK_STEPS
    if given.toggle and given.toggle_steps < least:
        parser.error(f"--toggle-steps {given.toggle_steps}: must be at least {least}")
    # Ranks import the hook, too.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        each_ns = span_ns(folder)
        # The demo's own samples: later ones do not change those before them.
        write_digits(folder / "data")
        config = trained(folder, "run", f"train.steps={given.steps}")
        actions, spans = actions_per_step(config), spans_per_step(config)
        step_ms = 1e3 * statistics.mean(seconds_of(config)[WARMUP:])
        busiest = max(spans, key=lambda label: spans[label])
        result: dict[str, Any] = {
            "bench": "events",
            "span_ns": round(each_ns),
            "actions_per_step": round(actions[busiest], 1),
            "spans_per_step": round(spans[busiest], 1),
            "step_ms": round(step_ms, 1),
            "share_percent": round(100 * spans[busiest] * each_ns / 1e6 / step_ms, 4),
            "layout": str(config.flow.chosen),
        }
        if given.toggle:
            steps = f"train.steps={given.toggle_steps}"
            switched = trained(folder, "switched", steps, "debug.fault=event_switch:switch")
            result |= cost_of_writing(switched)
    print(json.dumps(result | conditions()))


if __name__ == "__main__":
    main()
