"""Log of a run: what anyone can check, what it cost in time, and a line to watch it by."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowtrain.output import show
from flowtrain.plan import StepPlan
from flowtrain.train.control.close import Verdict

METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
LOGS = (METRICS, TIMING, "plan.log")
"""Logs that have a line for each step, and are cut to the step where a run goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTiming:
    """What a step took on the first backbone rank.

    Attributes:
        seconds: From the close of the step before, or the start of the first step, to this close.
            The wait for the plan and the checkpoint of the step before are in it.
        pool: `Pool.stats()` at the close.
    """

    seconds: float
    pool: Any


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with null for a number that is not finite, for which JSON has no word."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def append(log: Path, line: str) -> None:
    """Add a line to a log.

    Raises:
        OSError: It cannot be written; the message names the log.
    """
    try:
        with log.open("a") as file:
            file.write(line + "\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(log)) from error


def read_log(path: Path) -> list[dict[str, Any]]:
    """The objects of a log, one a line.

    Raises:
        ValueError: A line is not JSON; the message has its file and number.
    """
    objects = []
    with path.open("rb") as log:
        for number, line in enumerate(log, 1):
            with _reading(path, number):
                objects.append(json.loads(line))
    return objects


def cut(path: Path, step: int) -> None:
    """Drop the lines of a log from `step` on, and a last line that a kill left torn."""
    if not path.exists():
        return
    # Shortened in place: a kill in the middle must not lose the lines that are kept.
    with path.open("r+b") as log:
        kept = 0
        for number, line in enumerate(log, 1):
            if not line.endswith(b"\n"):
                break
            with _reading(path, number):
                if int(json.loads(line)["step"]) >= step:
                    break
            kept += len(line)
        log.truncate(kept)


@contextmanager
def _reading(path: Path, number: int) -> Iterator[None]:
    """Read a line of a log within the block, which names it if that fails."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}:{number}: not a line of this log ({error!r}); mend it, or start another run"
        ) from error


class Metrics:
    """Writes `metrics.jsonl` (equal on every rerun) and `timing.jsonl` (not), and shows both.

    Args:
        run: Folder of the run.
        steps: Steps of the whole run.
        peak_flops: Peak FLOP/s of all ranks together, for MFU.
        every: Steps between plain lines, where the output is no terminal.
    """

    def __init__(self, run: Path, *, steps: int, peak_flops: float, every: int = 50) -> None:
        self._run = run
        self._steps = steps
        self._peak_flops = peak_flops
        self._every = every
        self._seconds = 0.0
        self._bytes = 0
        self._tokens = 0
        self._flops = 0.0
        # There is no standard output where the shell has closed it (`>&-`).
        self._on_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._line_is_open = False

    def step(
        self,
        plan: StepPlan,
        verdict: Verdict,
        *,
        lr: float,
        skipped: int,
        ages: Sequence[int],
        timing: StepTiming,
    ) -> None:
        """Log one closed step."""
        self._write(
            METRICS,
            step=plan.step,
            loss=verdict.loss,
            target_tokens=verdict.num_targets,
            samples=plan.samples,
            grad_norm=verdict.grad_norm,
            lr=lr,
            weight_ages=ages,
            skipped_samples=skipped,
            dropped_samples=plan.dropped,
            truncated_samples=plan.truncated,
            action=verdict.action,
            packing=asdict(plan.packing) if plan.packing is not None else None,
        )
        tokens = sum(d.num_tokens for rank in plan.documents for slot in rank for d in slot)
        in_use = sum(segment["in_use_bytes"] for segment in timing.pool["segments"])
        size = sum(segment["bytes"] for segment in timing.pool["segments"])
        self._write(
            TIMING,
            step=plan.step,
            seconds=timing.seconds,
            tokens=tokens,
            tokens_per_s=tokens / timing.seconds,
            mfu=plan.flops / (timing.seconds * self._peak_flops),
            wait_s=verdict.wait_s,
            pool_in_use_bytes=in_use,
            pool_bytes=size,
            bytes_through_pool=timing.pool["bytes_published"] - self._bytes,
            peak_flops=self._peak_flops,
        )
        self._seconds += timing.seconds
        self._bytes = timing.pool["bytes_published"]
        self._tokens += tokens
        self._flops += plan.flops
        self._show(plan, verdict, timing, used=in_use / size if size else 0.0)

    def close(self) -> None:
        """End the line on the terminal."""
        if self._line_is_open:
            self._print("\n")

    def _show(self, plan: StepPlan, verdict: Verdict, timing: StepTiming, *, used: float) -> None:
        waits = " ".join(f"{w} {s / timing.seconds:.0%}" for w, s in verdict.wait_s.items())
        line = (
            f"step {plan.step + 1}/{self._steps}  loss {verdict.loss:.4f}  "
            f"grad {verdict.grad_norm:.3f}  {self._tokens / self._seconds:,.0f} tokens/s  "
            f"MFU {self._flops / (self._seconds * self._peak_flops):.1%}  "
            f"wait {waits}  pool {used:.0%}"
        )
        if self._on_terminal:
            # Plain text, as a killed rank could not undo a mode of the terminal. It is cut to one
            # row, from whose end a carriage return leads back to its beginning.
            width = shutil.get_terminal_size().columns - 1
            self._print(f"\r{line[:width]:{width}}")
            self._line_is_open = True
        elif (plan.step + 1) % self._every == 0 or plan.step + 1 == self._steps or plan.step == 0:
            self._print(line + "\n")

    @staticmethod
    def _print(text: str) -> None:
        show(
            text,
            otherwise="progress is no longer shown, and the run goes on; "
            f"{METRICS} and {TIMING} have every step",
        )

    def _write(self, log: str, **values: Any) -> None:
        line = json.dumps(json_values(values), separators=(",", ":"), allow_nan=False)
        append(self._run / log, line)
