"""Metrics of a run: logged for every step, and printed for some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowtrain.events import busy
from flowtrain.output import show
from flowtrain.steps import StepPlan
from flowtrain.train.control.exchange import StepDecision
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.ranks.evaluations import Evaluation
from flowtrain.train.ranks.trackers import Tracker
from flowtrain.train.ranks.utilization import Utilization
from flowtrain.train.state.logs import ANSWERS, EVALUATIONS, METRICS, TIMING, Log, json_values
from flowtrain.train.state.optimizer import LearningRates


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTiming:
    """Time and memory of a step, measured on the first backbone rank.

    Attributes:
        seconds: From the previous update, or the start of the first step, to this one. It
            includes the wait for the plan and the previous checkpoint. What the ranks did is
            logged as `activity_s`: means over the ranks of each world, from one report to the next,
            so that the optimizer and the log of a step count for the following step.
        pool: `Pool.stats()` at the update.
        hits: Images of the step whose features were in the cache; None without a cache.
    """

    seconds: float
    pool: Any
    hits: int | None = None


class Metrics:
    """Writes the logs of a run, and shows the progress.

    `metrics.jsonl`, `eval.jsonl` and `answers.jsonl` are the same in a rerun; `timing.jsonl` is
    not. The number of a step counts from 0; a line of progress says how many steps are done, as the
    name of a checkpoint does.

    Args:
        run: Folder of the run.
        steps: Steps of the whole run.
        rates: Learning rates of the steps.
        utilization: Compares FLOPs with the peak of the ranks.
        trackers: Get the figures of each step as well.
        held_out: Reads of the held-out samples, for answers.
        every: Steps between lines of progress.
    """

    def __init__(
        self,
        run: Path,
        *,
        steps: int,
        rates: LearningRates,
        utilization: Utilization,
        trackers: Sequence[Tracker] = (),
        held_out: SampleReads | None = None,
        every: int = 50,
    ) -> None:
        self._logs = {name: Log(run / name) for name in (METRICS, TIMING, EVALUATIONS, ANSWERS)}
        self._trackers = trackers
        self._held_out = held_out
        self._steps = steps
        self._rates = rates
        self._utilization = utilization
        self._every = every
        self._seconds = 0.0
        self._bytes = 0
        self._tokens = 0
        self._flops = 0.0
        self._left_out: Counter[str] = Counter()

    def step(
        self,
        plan: StepPlan,
        decision: StepDecision,
        *,
        skipped: int,
        ages: Sequence[int],
        timing: StepTiming,
    ) -> None:
        """Log one step."""
        lr, group_lrs = self._rates.at(plan.step)
        norms = {
            world: json_values({"step": step, "norm": norm})
            for world, (step, norm) in decision.norms.items()
        }
        self._write(
            METRICS,
            step=plan.step,
            loss=decision.loss,
            target_tokens=decision.num_targets,
            samples=plan.samples,
            **({"grad_norms": norms} if norms else {"grad_norm": decision.grad_norm}),
            lr=lr,
            **({"group_lrs": group_lrs} if group_lrs else {}),
            weight_ages=ages,
            skipped_samples=skipped,
            dropped_samples=plan.dropped,
            truncated_samples=plan.truncated,
            action=decision.action,
            packing=asdict(plan.packing) if plan.packing is not None else None,
        )
        tokens = sum(d.num_tokens for rank in plan.documents for slot in rank for d in slot)
        in_use = sum(segment["in_use_bytes"] for segment in timing.pool["segments"])
        size = sum(segment["bytes"] for segment in timing.pool["segments"])
        cached = _cache_counts(plan, timing)
        encoded = cached["cache_misses"] / (sum(cached.values()) or 1) if cached else 1.0
        of_module = self._utilization.flops(plan, encoded=encoded)
        flops = sum(of_module.values())
        mfu = self._utilization.mfu(flops, timing.seconds)
        modules = self._utilization.by_module(of_module, timing.seconds, decision.seconds)
        self._write(
            TIMING,
            step=plan.step,
            seconds=timing.seconds,
            tokens=tokens,
            tokens_per_s=tokens / timing.seconds,
            mfu=mfu,
            modules=modules,
            activity_s=decision.seconds,
            pool_in_use_bytes=in_use,
            pool_bytes=size,
            bytes_through_pool=timing.pool["bytes_published"] - self._bytes,
            peak_flops=self._utilization.peaks.all,
            memory_bytes={f"{world}.0": size for world, size in decision.peak_bytes.items()},
            **cached,
        )
        figures = {
            "train/loss": decision.loss,
            **_norm_figures(plan.step, decision),
            "train/lr": lr,
            **{f"train/lr/{match}": rate for match, rate in group_lrs.items()},
            "train/target_tokens": decision.num_targets,
            "train/tokens_per_s": tokens / timing.seconds,
            "train/mfu": mfu,
            **{f"train/mfu/{name}": figures["mfu"] for name, figures in modules.items()},
            **{f"train/{name}": count for name, count in cached.items()},
        }
        for tracker in self._trackers:
            tracker.log(plan.step, figures)
        self._seconds += timing.seconds
        self._bytes = timing.pool["bytes_published"]
        self._tokens += tokens
        self._flops += flops
        self._left_out.update(skipped=skipped, dropped=plan.dropped, truncated=plan.truncated)
        self._show(plan, decision, timing, used=in_use / size if size else 0.0)

    def evaluation(self, step: int, result: Evaluation | None) -> None:
        """Log an evaluation.

        Args:
            step: Step after which the model was evaluated.
            result: Its result; None if it was left out, as the run ends early on request.
        """
        title = f"evaluation after {step + 1}/{self._steps} steps  "
        if result is None:
            self._print(f"{title}left out, as the run ends early\n")
            return
        result.write(self._logs[EVALUATIONS], step)
        for sample, ids in result.answers.items():
            assert self._held_out is not None
            read = self._held_out.submit("answer", sample, ids)
            self._write(ANSWERS, step=step, sample=sample, **self._held_out.result(read))
        for tracker in self._trackers:
            tracker.log(step, {"eval/loss": result.loss, "eval/seconds": result.seconds})
        counts = {
            "samples": result.samples,
            "skipped": result.skipped,
            "dropped": result.dropped,
            "truncated": result.truncated,
        }
        used = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n or what == "samples")
        self._print(f"{title}loss {result.loss:.4f}  {used}  {result.seconds:.1f} s\n")

    def close(self) -> None:
        """Close the trackers."""
        for tracker in self._trackers:
            tracker.close()

    def _show(
        self, plan: StepPlan, decision: StepDecision, timing: StepTiming, *, used: float
    ) -> None:
        shares = " ".join(f"{world} {busy(s):.0%}" for world, s in decision.seconds.items())
        norms = " ".join(f"{world} {norm:.3f}" for world, (_, norm) in decision.norms.items())
        norms = norms or f"{decision.grad_norm:.3f}"
        line = (
            f"after {plan.step + 1}/{self._steps} steps  loss {decision.loss:.4f}  "
            f"grad {norms}  {self._tokens / self._seconds:,.0f} tokens/s  "
            f"MFU {self._utilization.mfu(self._flops, self._seconds):.1%}  "
            f"busy {shares}  pool {used:.0%}"
        )
        if left_out := ", ".join(f"{n:,} {how}" for how, n in self._left_out.items() if n):
            line += f"  samples: {left_out}"
        if (plan.step + 1) % self._every == 0 or plan.step + 1 == self._steps or plan.step == 0:
            self._print(line + "\n")

    @staticmethod
    def _print(text: str) -> None:
        show(
            text,
            otherwise="progress is no longer shown, and the run goes on; "
            f"{METRICS} and {TIMING} have every step",
        )

    def _write(self, log: str, **values: Any) -> None:
        self._logs[log].append_values(values)


def _cache_counts(plan: StepPlan, timing: StepTiming) -> dict[str, int]:
    """Images whose features were in the cache, and the others; empty without a cache."""
    if timing.hits is None:
        return {}
    images = sum(len(item.images) for item in plan.items)
    return {"cache_hits": timing.hits, "cache_misses": images - timing.hits}


def _norm_figures(step: int, decision: StepDecision) -> dict[str, float]:
    """Gradient norms of a step, for trackers, which take figures of this step only."""
    if not decision.norms:
        return {"train/grad_norm": decision.grad_norm}
    return {
        f"train/grad_norm{'' if at == step else '_before'}/{world}": norm
        for world, (at, norm) in decision.norms.items()
    }
