"""Differences of a Trainer whose encoder is apart from the Trainer with the whole model.

Both are of Hugging Face or of TRL, with the same arguments and samples; the first accumulates over
two passes and has one or two ranks, the second has whole steps in one process.
"""

from __future__ import annotations

import json
import shutil
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import decouple_loop
import torch
from connect_parity import encoder, largest_difference, relative_change, started, wait_for
from decouple_loop import STEPS, recorded, trainer_of
from transformers import AutoModelForImageTextToText, PrinterCallback


def compare_trainers(
    folder: Path,
    *,
    kind: str,
    mode: str,
    form: str,
    ranks: int,
    colocated: bool,
    evaluates: bool,
    resumed: bool,
) -> dict[str, Any]:
    """Train with both, and compare.

    Args:
        folder: Has `data/model`, with weights, and `data/train.jsonl`; the runs are written to it.
        kind: `trainer`, `sft` or `lora`.
        mode: `strict` or `frozen`.
        form: One of `decouple_loop.FORMS`.
        ranks: Ranks of the Trainer.
        colocated: Whether these encode.
        evaluates: Whether both evaluate on held-out samples after every second step.
        resumed: Let it fail, and go on from the checkpoint before its last, which the job has
            passed.

    Raises:
        RuntimeError: A process failed or took too long, or the job's pool was left.
    """
    model, data, out = folder / "data" / "model", folder / "data", folder / "trainer"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Of TRL and PEFT.
        trainer = trainer_of(
            kind,
            mode,
            model,
            data,
            folder / "plain",
            form=form,
            evaluates=evaluates,
            save_strategy="no",
        )
        trainer.remove_callback(PrinterCallback)
        start = {
            name: parameter.detach().clone()
            for name, parameter in trainer.model.named_parameters()
            if parameter.requires_grad
        }
        losses = recorded(trainer)
        trainer.train()
    layout = "colocated" if colocated else "decoupled"
    evaluated = "evaluates" if evaluates else "-"
    given = [kind, mode, form, layout, evaluated, str(model), str(data), str(out)]
    if resumed:
        _run(out, [*given, "fail"], ranks=ranks, code=1, colocated=colocated)
        checkpoints = sorted(out.glob("checkpoint-*"))
        assert len(checkpoints) == 2
        shutil.rmtree(checkpoints[-1])
    last = "resume" if resumed else "start"
    _run(out, [*given, last], ranks=ranks, code=0, colocated=colocated)
    expected = dict(trainer.model.state_dict())
    log = json.loads((out / f"{last}.log.json").read_text())
    norms, rates, evaluations = (
        [[row[field] for row in rows if field in row] for rows in (log, trainer.state.log_history)]
        for field in ("grad_norm", "learning_rate", "eval_loss")
    )
    assert len(norms[0]) == STEPS and rates[0] == rates[1]
    assert len(evaluations[0]) == (STEPS // 2 if evaluates else 0)
    weights, worst = largest_difference(_saved(out / "out", kind, trainer, form), expected)
    return {
        "max_rel_loss_diff": max(
            abs(found - losses[step]) / losses[step]
            for step, found in _losses(out, last, ranks=ranks).items()
        ),
        "max_rel_norm_diff": _largest(*norms),
        **({"max_rel_eval_diff": _largest(*evaluations)} if evaluates else {}),
        "max_rel_weight_diff": weights,
        "worst_weight": worst,
        "weight_change": relative_change(start, expected),
        "clipped_steps": sum(norm > trainer.args.max_grad_norm for norm in norms[1]),
        "steps": STEPS,
    }


def _run(out: Path, given: list[str], *, ranks: int, code: int, colocated: bool) -> None:
    """Run all ranks of a Trainer and its encoder rank; all have to end with this code."""
    out.mkdir(exist_ok=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    commands = {"trainer": [*torchrun, decouple_loop.__file__, *given]}
    with ExitStack() as stack:
        codes = {} if colocated else {stack.enter_context(encoder(out / "job")): code}
        [trainer] = stack.enter_context(started(commands))
        wait_for({trainer: code, **codes}, out / "job")


def _losses(out: Path, how: str, *, ranks: int) -> dict[int, float]:
    """The loss of each step over all ranks; of a resumed Trainer, of its own steps."""
    each = [json.loads((out / f"{how}.{rank}.json").read_text()) for rank in range(ranks)]
    return {int(step): sum(own[step] for own in each) / ranks for step in each[0]}


def _largest(found: list[float], expected: list[float]) -> float:
    return max(abs(x - y) / abs(y) for x, y in zip(found, expected, strict=True))


def _saved(folder: Path, kind: str, trainer: Any, form: str) -> dict[str, torch.Tensor]:
    """The weights that a Trainer has written, by their names in the other's model."""
    if kind == "lora":
        from safetensors.torch import load_file

        found = load_file(folder / "adapter_model.safetensors")
        return {name.replace(".weight", ".default.weight"): found[name] for name in found}
    dtype = getattr(torch, form.split("-")[0])
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype)
    return dict(model.state_dict())
