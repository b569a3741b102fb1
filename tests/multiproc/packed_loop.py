"""A plain DDP loop over packed batches, one process per rank; started by `test_packed_loop.py`.

When it is resumed, accelerate prepares model, optimizer and loader.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from flowtrain.data import PackedLoader

SAMPLES, VOCABULARY, EPOCHS, BATCH, MICROBATCHES, RANKS, SEED = 53, 11, 2, 3, 2, 2, 5


def dataset() -> list[dict[str, Any]]:
    """Texts of very different lengths, with some tokens as targets."""
    draw = random.Random(0)
    made = []
    for _ in range(SAMPLES):
        tokens = [draw.randrange(VOCABULARY) for _ in range(draw.choice([2, 5, 40]))]
        masked = [token if draw.random() < 0.6 else -100 for token in tokens]
        made.append({"input_ids": tokens, "labels": masked})
    return made


class Model(torch.nn.Module):
    """Predicts a token from the previous one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.table = torch.nn.Embedding(VOCABULARY, 8, dtype=torch.float64)
        self.head = torch.nn.Linear(8, VOCABULARY, dtype=torch.float64)

    def forward(self, samples: list[dict[str, Any]]) -> torch.Tensor:
        """Sum of the losses of all target tokens."""
        total = torch.zeros((), dtype=torch.float64)
        for sample in samples:
            scores = self.head(self.table(torch.tensor(sample["input_ids"][:-1])))
            labels = torch.tensor(sample["labels"][1:])
            total = total + torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
        return total


def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def train(folder: Path, rank: int, attempt: str, dies_at: int) -> None:
    """Train to the end, or until rank 1 kills itself before batch `dies_at`."""
    store = f"file://{folder / attempt}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    plain = Model()
    optim = optimizer(plain)
    loader = PackedLoader(
        dataset(),
        BATCH,
        shuffle=True,
        seed=SEED,
        max_tokens=120,
        microbatches=MICROBATCHES,
        targets="labels",
        collate_fn=list,
    )
    losses: list[float] = []
    backward = torch.Tensor.backward
    saved = folder / "saved.pt"
    if not saved.exists():
        model: Any = DistributedDataParallel(plain)
    else:
        state = torch.load(saved)
        plain.load_state_dict(state["model"])
        optim.load_state_dict(state["optim"])
        loader.load_state_dict(state["loader"])
        losses = state["losses"]
        # From these accelerate knows that there are ranks.
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.environ |= {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
        accelerator = Accelerator(cpu=True)
        model, optim, loader = accelerator.prepare(plain, optim, loader)
        assert isinstance(model, DistributedDataParallel)
        backward = accelerator.backward
    batches, step_loss = 0, torch.zeros((), dtype=torch.float64)
    for epoch in range(loader.state_dict()["place"]["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        for batch, at in loader:
            if rank == 1 and batches == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            batches += 1
            with nullcontext() if at.ends_step else model.no_sync():
                loss = model(batch) * at.sum_weight
                backward(loss)
            step_loss += loss.detach() / RANKS
            if not at.ends_step:
                continue
            dist.all_reduce(step_loss)
            losses.append(float(step_loss))
            step_loss.zero_()
            optim.step()
            optim.zero_grad()
            if rank == 0:
                state = {"model": plain.state_dict(), "optim": optim.state_dict()}
                state |= {"loader": loader.state_dict(at), "losses": losses}
                torch.save(state, folder / "part")
                (folder / "part").rename(saved)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
