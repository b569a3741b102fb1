"""Differences of a Trainer whose encoder is apart from the Trainer with the whole model.

Both are of Hugging Face or of TRL, with the same arguments and samples; the first accumulates over
two passes and has one or two ranks, the second has whole steps in one process.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import decouple_loop
import torch
from connect_parity import encoder, largest_difference, relative_change, started, wait_for
from decouple_loop import STEPS, trainer_of
from transformers import AutoModelForImageTextToText, PrinterCallback


def compare_trainers(
    folder: Path, *, kind: str, mode: str, ranks: int, resumed: bool
) -> dict[str, Any]:
    """Train with both, and compare.

    Args:
        folder: Has `data/model`, with weights, and `data/train.jsonl`; the runs are written to it.
        kind: `trainer`, `sft` or `lora`.
        mode: `strict` or `frozen`.
        ranks: Ranks of the Trainer.
        resumed: Let it fail, and go on from its last checkpoint.

    Raises:
        RuntimeError: A process failed or took too long, or a pool was left in shared memory.
    """
    model, data, out = folder / "data" / "model", folder / "data", folder / "trainer"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Of TRL and PEFT.
        trainer = trainer_of(kind, mode, model, data, folder / "plain", save_steps=99)
        trainer.remove_callback(PrinterCallback)
        start = {
            name: parameter.detach().clone()
            for name, parameter in trainer.model.named_parameters()
            if parameter.requires_grad
        }
        trainer.train()
    given = [kind, mode, str(model), str(data), str(out)]
    for how in ("fail", "resume") if resumed else ("start",):
        _run(out / "job", [*given, how], ranks=ranks, code=int(how == "fail"))
    expected = dict(trainer.model.state_dict())
    logs = [json.loads((out / "log.json").read_text()), trainer.state.log_history]
    losses, norms, rates = (
        [[row[field] for row in log if field in row] for log in logs]
        for field in ("loss", "grad_norm", "learning_rate")
    )
    assert len(losses[0]) == STEPS and rates[0] == rates[1]
    weights, worst = largest_difference(_saved(out / "out", kind, trainer), expected)
    return {
        "max_rel_loss_diff": _largest(*losses),
        "max_rel_norm_diff": _largest(*norms),
        "max_rel_weight_diff": weights,
        "worst_weight": worst,
        "weight_change": relative_change(start, expected),
        "clipped_steps": sum(norm > trainer.args.max_grad_norm for norm in norms[1]),
        "steps": STEPS,
    }


def _run(job: Path, given: list[str], *, ranks: int, code: int) -> None:
    """Run all ranks of a Trainer and its encoder rank; all have to end with this code."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    commands = {"trainer": [*torchrun, decouple_loop.__file__, *given]}
    with encoder(job) as command, started(commands) as [trainer]:
        wait_for({trainer: code, command: code})


def _largest(found: list[float], expected: list[float]) -> float:
    return max(abs(x - y) / abs(y) for x, y in zip(found, expected, strict=True))


def _saved(folder: Path, kind: str, trainer: Any) -> dict[str, torch.Tensor]:
    """The weights that a Trainer has written, by their names in the other's model."""
    if kind == "lora":
        from safetensors.torch import load_file

        found = load_file(folder / "adapter_model.safetensors")
        return {name.replace(".weight", ".default.weight"): found[name] for name in found}
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return dict(model.state_dict())
