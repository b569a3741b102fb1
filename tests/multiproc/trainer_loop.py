"""A Trainer with packed batches, one process per rank; started by `test_trainer.py`."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    DataCollatorWithFlattening,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from flowtrain.integrations import pack_batches
from flowtrain.packing import PackingError

SAMPLES, VOCABULARY, EPOCHS, BATCH, MICROBATCHES, RANKS, SEED = 38, 11, 2, 3, 2, 2, 5
STEPS = -(-SAMPLES // (BATCH * MICROBATCHES * RANKS))
RATE = 0.1


class Texts(Dataset[dict[str, Any]]):
    """Texts of very different lengths, with some tokens as targets; the last step has two."""

    def __init__(self) -> None:
        draw = random.Random(0)
        self.rows: list[dict[str, Any]] = []
        self.read: list[int] = []
        for _ in range(SAMPLES):
            tokens = [draw.randrange(VOCABULARY) for _ in range(draw.choice([3, 6, 40]))]
            labels = [token if draw.random() < 0.6 else -100 for token in tokens[:-1]]
            self.rows.append({"input_ids": tokens, "labels": [*labels, tokens[-1]]})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        return self.rows[index]


def model() -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attn_implementation="eager",
        dtype="float64",
    )
    return LlamaForCausalLM(config).to(torch.float64)


def arguments(folder: Path, **others: Any) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=MICROBATCHES,
        num_train_epochs=EPOCHS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        seed=SEED,
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
        report_to=[],
        save_steps=STEPS + 2,  # In the middle of the second epoch.
        **others,
    )


def refusal(loader: Any) -> str:
    """The message of the error when a loader is iterated, or an empty one."""
    try:
        next(iter(loader))
    except PackingError as error:
        return str(error)
    return ""


def train(folder: Path, resume: bool) -> None:
    data = Texts()
    trainer = Trainer(
        model=model(),
        args=arguments(folder),
        train_dataset=data,
        data_collator=DataCollatorWithFlattening(),
    )
    pack_batches(trainer, max_tokens=130 + trainer.args.process_index)
    differing = refusal(trainer.get_train_dataloader())
    pack_batches(trainer, max_tokens=130, cost=lambda sample: len(sample["input_ids"]) ** 2)
    if resume:
        data.read.clear()
    trainer.train(resume_from_checkpoint=resume)
    afterwards = refusal(trainer.callback_handler.train_dataloader)
    if trainer.args.process_index == 0:
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        found = {"model": trainer.model.state_dict(), "losses": losses, "read": len(data.read)}
        found["differing"] = differing
        found["afterwards"] = afterwards
        torch.save(found, folder / ("resumed.pt" if resume else "whole.pt"))
    trainer.accelerator.wait_for_everyone()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = sys.argv[2]
    train(Path(sys.argv[1]), resume=sys.argv[3] == "resume")
    sys.stdout.flush()
    # The model keeps gloo's threads alive. A thread that frees a tensor while the interpreter ends
    # asks for the GIL and is ended in a frame that no exception may leave, so that torch aborts.
    os._exit(0)
