"""A Trainer whose encoder is apart, one process per rank; started by `decouple_parity.py`.

KIND MODE FORM LAYOUT evaluates|- MODEL DATA OUT start|fail|resume
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from flowtrain.data import VlmCollator, VlmSamples
from flowtrain.integrations import decouple

BATCH, STEPS, FAILS_AFTER, MAX_TOKENS = 8, 6, 5, 200
HELD_OUT = 8
"""Number of held-out samples."""


FORMS: dict[str, dict[str, Any]] = {
    "float32-sgd": {"optim": "sgd", "learning_rate": 0.5},
    "float64-adamw": {"optim": "adamw_torch", "learning_rate": 1e-3},
}


def trainer_of(
    kind: str,
    mode: str,
    folder: Path,
    data: Path,
    out: Path,
    *,
    form: str = "float32-sgd",
    evaluates: bool = False,
    **others: Any,
) -> Any:
    """A Trainer or SFTTrainer of the samples in their order; `lora` is one with adapters.

    Without FlowTrain, the loss of an evaluation is a mean of those of batches: there is one.
    """
    dtype = getattr(torch, form.split("-")[0])
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype)
    model.model.visual.requires_grad_(mode == "strict")
    options: dict[str, Any] = {
        "output_dir": str(out),
        "max_steps": STEPS,
        "train_sampling_strategy": "sequential",
        "per_device_train_batch_size": BATCH,
        "lr_scheduler_type": "linear",
        **FORMS[form],
        "max_grad_norm": 0.2,
        "weight_decay": 0.01,
        "save_steps": 2,
        "logging_steps": 1,
        "use_cpu": True,
        "remove_unused_columns": False,
        "report_to": [],
        "disable_tqdm": True,
        **({"eval_strategy": "steps", "eval_steps": 2} if evaluates else {}),
        "per_device_eval_batch_size": HELD_OUT,
        **others,
    }
    given: dict[str, Any] = {
        "model": model,
        "train_dataset": VlmSamples(folder, data / "train.jsonl"),
        "eval_dataset": VlmSamples(folder, data / "heldout.jsonl") if evaluates else None,
        "data_collator": VlmCollator(folder),
        "compute_loss_func": _float64_loss if dtype == torch.float64 else None,
    }
    if kind == "trainer":
        return Trainer(args=TrainingArguments(**options), **given)
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    # TRL takes no other data sets.
    for name in ("train_dataset", "eval_dataset")[: 1 + evaluates]:
        samples = given[name]
        rows = Dataset.from_dict({"row": list(range(len(samples)))})
        given[name] = rows.with_transform(partial(_read, samples))
    own = {"bf16": False, "max_length": None, "gradient_checkpointing": False}
    given["data_collator"] = partial(collated, given["data_collator"])
    skip = {"skip_prepare_dataset": True}
    processor = AutoProcessor.from_pretrained(folder)
    config = SFTConfig(dataset_kwargs=skip, **{**own, **options})
    if kind == "lora":
        from peft import LoraConfig

        torch.manual_seed(2)
        given["peft_config"] = LoraConfig(r=4, target_modules=r".*language_model.*_proj")
    return SFTTrainer(args=config, processing_class=processor, **given)


def _float64_loss(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None
) -> torch.Tensor:
    """The loss of causal language models, which transformers and TRL compute in float32."""
    logits = outputs["logits"][:, :-1].flatten(0, 1)
    assert logits.dtype == torch.float64
    loss = F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    # An evaluation has no number.
    return loss / (num_items_in_batch or (labels[:, 1:] != -100).sum())


def recorded(trainer: Any) -> dict[int, float]:
    """The loss of each step of this rank, by the number of steps before it.

    The log of a Trainer has it in float32.
    """
    found: dict[int, float] = defaultdict(float)
    step = trainer.training_step

    def training_step(*given: Any, **others: Any) -> torch.Tensor:
        loss: torch.Tensor = step(*given, **others)
        found[trainer.state.global_step] += float(loss)
        return loss

    trainer.training_step = training_step
    return found


def _read(samples: VlmSamples, rows: dict[str, list[int]]) -> dict[str, list[Any]]:
    return {"row": samples.__getitems__(rows["row"])}


def collated(collate: VlmCollator, rows: list[dict[str, Any]]) -> Any:
    return collate([each["row"] for each in rows])


class _Fails(TrainerCallback):
    """Fails after a step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == FAILS_AFTER:
            raise RuntimeError("a callback failed")


def main(
    kind: str,
    mode: Any,
    form: str,
    layout: str,
    evaluates: bool,
    folder: Path,
    data: Path,
    out: Path,
    how: str,
) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    share = {"per_device_train_batch_size": BATCH // 2 // ranks, "gradient_accumulation_steps": 2}
    trainer = trainer_of(kind, mode, folder, data, out, form=form, evaluates=evaluates, **share)
    if how == "fail":
        trainer.add_callback(_Fails())
    decouple(
        trainer,
        out / "job",
        max_tokens=MAX_TOKENS,
        dataset=data / "train.jsonl",
        held_out=data / "heldout.jsonl",
        mode=mode,
        layout=layout,
    )
    losses = recorded(trainer)
    trainer.train(resume_from_checkpoint=how == "resume")
    trainer.save_model(str(out / "out"))
    (out / f"{how}.{trainer.args.process_index}.json").write_text(json.dumps(losses))
    if trainer.args.process_index == 0:
        (out / f"{how}.log.json").write_text(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, mode, form, layout, evaluates, *folders, how = sys.argv[1:]
    code = 0
    try:
        main(kind, mode, form, layout, evaluates == "evaluates", *map(Path, folders), how)
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    # gloo's threads must not meet the end of the interpreter.
    sys.stdout.flush()
    os._exit(code)
