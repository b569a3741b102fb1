"""Packed VLM batches in the Trainer and in a plain loop, one process per rank.

Started by `test_vlm_loop.py`. Both train once to the end, and once from a state in the middle of an
epoch with new objects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from reference_loop import Samples
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForImageTextToText, Trainer, TrainingArguments

from flowtrain.data import PackedLoader, VlmCollator
from flowtrain.integrations import pack_batches

SAMPLES, EPOCHS, BATCH, MICROBATCHES, RANKS, SEED = 21, 2, 2, 2, 2, 5
STEPS = -(-SAMPLES // (BATCH * MICROBATCHES * RANKS))
SAVED = STEPS + 1  # Steps at which a state is kept, in the middle of the second epoch.
RATE, MAX_TOKENS = 0.5, 300
ATTENTION = {"text_config": "flowtrain_varlen", "vision_config": "sdpa"}


class Processed(Dataset[dict[str, Any]]):
    """What the model's processor returns for each sample, and its labels."""

    def __init__(self, folder: Path) -> None:
        self._samples = Samples(folder / "train.jsonl", folder / "model")

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self._samples[index]
        return {k: v.double() if k == "pixel_values" else v for k, v in sample.items()}


def model(folder: Path, attention: Any) -> Any:
    torch.manual_seed(SEED)
    config = AutoConfig.from_pretrained(folder / "model")
    return AutoModelForImageTextToText.from_config(config, attn_implementation=attention).double()


def in_trainer(folder: Path, save: Path, resume: bool) -> dict[str, torch.Tensor]:
    """Weights after training with transformers' own attention."""
    args = TrainingArguments(
        str(save),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=MICROBATCHES,
        num_train_epochs=EPOCHS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        seed=SEED,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        save_steps=SAVED,
    )
    trainer = Trainer(
        model=model(folder, "sdpa"),
        args=args,
        train_dataset=Processed(folder),
        data_collator=VlmCollator(folder / "model"),
    )
    pack_batches(trainer, max_tokens=MAX_TOKENS)
    trainer.train(resume_from_checkpoint=str(save / f"checkpoint-{SAVED}") if resume else None)
    trained: Any = trainer.model
    return dict(trained.state_dict())


def in_plain_loop(folder: Path, save: Path, resume: bool) -> dict[str, torch.Tensor]:
    """Weights after training with FlowTrain's attention and the mean loss of the model."""
    plain = model(folder, ATTENTION)
    # A microbatch of texts alone does not reach the tower.
    wrapped = DistributedDataParallel(plain, find_unused_parameters=True)
    optim = torch.optim.SGD(plain.parameters(), lr=RATE)
    collate = VlmCollator(folder / "model", documents=True)
    with PackedLoader(
        Processed(folder),
        BATCH,
        shuffle=True,
        seed=SEED,
        max_tokens=MAX_TOKENS,
        microbatches=MICROBATCHES,
        targets="labels",
        collate_fn=collate,
    ) as loader:
        if resume:
            state = torch.load(save)
            plain.load_state_dict(state["model"])
            loader.load_state_dict(state["loader"])
        first = loader.state_dict()["place"]["epoch"]
        for epoch in range(first, EPOCHS):
            loader.set_epoch(epoch)
            for batch, at in loader:
                with nullcontext() if at.ends_step else wrapped.no_sync():
                    loss = wrapped(**batch).loss * at.mean_weight
                    loss.backward()
                if not at.ends_step:
                    continue
                optim.step()
                optim.zero_grad()
                done = at.epoch * STEPS + at.step + 1
                if done == SAVED and not resume and dist.get_rank() == 0:
                    state = {"model": plain.state_dict(), "loader": loader.state_dict(at)}
                    torch.save(state, save)
    dist.barrier()
    return dict(plain.state_dict())


def main(folder: Path) -> None:
    loops: dict[str, Callable[..., dict[str, torch.Tensor]]] = {
        "trainer": in_trainer,
        "plain": in_plain_loop,
    }
    found = {
        (name, how): loop(folder, folder / name, how == "resumed")
        for name, loop in loops.items()
        for how in ("whole", "resumed")
    }
    if dist.get_rank() == 0:
        torch.save(found, folder / "found.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = sys.argv[2]
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    # As in `trainer_loop.py`: gloo's threads must not meet the end of the interpreter.
    os._exit(0)
