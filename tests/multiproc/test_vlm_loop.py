"""Packed VLM batches on two ranks give the weights of a plain loop without packing."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from forked import start_program
from plain_processor import processor_of
from support import imported, one_thread, torch_world

from flowtrain.data import VlmCollator
from flowtrain.data.digits import write_digits
from flowtrain.data.order import SampleOrder
from flowtrain.integrations import pack_batches
from flowtrain.models.tiny import SMALLEST

PROGRAM = Path(__file__).with_name("vlm_loop.py")
TOLERANCE = 1e-5


def write_data(folder: Path, loop: ModuleType, family: str = "qwen3_vl") -> None:
    """The loop's samples, with none, one and several images, and a tiny model of a family."""
    write_digits(
        folder,
        train=loop.SAMPLES,
        heldout=0,
        seed=3,
        text_only=0.25,
        multi_image=0.25,
        sizes=SMALLEST,
        family=family,
    )


def run(folder: Path) -> dict[tuple[str, str], dict[str, torch.Tensor]]:
    """Weights by loop, and by whether it was resumed."""
    with torch_world(2) as world:
        ranks = [
            start_program(PROGRAM, folder, rank, OMP_NUM_THREADS="1", **world) for rank in range(2)
        ]
        assert [rank.wait(timeout=200) for rank in ranks] == [0, 0]
    found: dict[tuple[str, str], dict[str, torch.Tensor]] = torch.load(folder / "found.pt")
    return found


def unpacked(loop: ModuleType, folder: Path) -> dict[str, torch.Tensor]:
    """Weights of a plain loop in one process that runs each sample alone."""
    model = loop.model(folder, "sdpa")
    optim = torch.optim.SGD(model.parameters(), lr=loop.RATE)
    data = loop.Processed(folder)
    size = loop.BATCH * loop.MICROBATCHES * loop.RANKS
    for epoch in range(loop.EPOCHS):
        lines = SampleOrder(len(data), loop.SEED, True).of_epoch(epoch).tolist()
        for start in range(0, len(lines), size):
            step = [data[line] for line in lines[start : start + size]]
            targets = [int((sample["labels"][:, 1:] != -100).sum()) for sample in step]
            for sample, count in zip(step, targets, strict=True):
                (model(**sample).loss * (count / sum(targets))).backward()
            optim.step()
            optim.zero_grad()
    weights: dict[str, torch.Tensor] = model.state_dict()
    return weights


# Qwen3-VL has four rows of positions and a loss that takes no num_items_in_batch. InternVL has one
# row, and takes them. transformers 5.23 saves its weights under other names than the Trainer loads,
# so that it cannot resume there, packed or not.
@pytest.mark.limit(300)
@pytest.mark.parametrize("family", ["qwen3_vl", pytest.param("internvl", marks=pytest.mark.deep)])
def test_two_ranks_have_the_weights_of_a_loop_without_packing_also_resumed(
    family: str, tmp_path: Path
) -> None:
    loop = imported(PROGRAM)
    write_data(tmp_path, loop, family)
    before = loop.model(tmp_path, "sdpa").state_dict()
    with one_thread():
        expected = unpacked(loop, tmp_path)
    for part in ("vision_tower" if family == "internvl" else "visual", "language_model"):
        moved = [(expected[n] - before[n]).abs().max() for n in expected if part in n]
        assert max(moved) > 100 * TOLERANCE
    found = run(tmp_path)
    assert len(found) == 4
    if family == "internvl":
        del found["trainer", "resumed"]
    for weights in found.values():
        for name, weight in expected.items():
            torch.testing.assert_close(weights[name], weight, rtol=0, atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore")  # Of TRL.
def test_the_trainer_of_trl_has_the_weights_of_a_loop_without_packing(tmp_path: Path) -> None:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    loop = imported(PROGRAM)
    write_data(tmp_path, loop)
    samples = [loop.Processed(tmp_path)[index] for index in range(loop.SAMPLES)]
    names = {name for sample in samples for name in sample}

    def processed(rows: dict[str, list[int]]) -> dict[str, list[Any]]:
        return {name: [samples[index].get(name) for index in rows["index"]] for name in names}

    indices = datasets.Dataset.from_dict({"index": range(loop.SAMPLES)})
    args = trl.SFTConfig(
        str(tmp_path / "trl"),
        per_device_train_batch_size=loop.BATCH,
        gradient_accumulation_steps=loop.MICROBATCHES * loop.RANKS,
        num_train_epochs=loop.EPOCHS,
        learning_rate=loop.RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        seed=loop.SEED,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    with one_thread():
        expected = unpacked(loop, tmp_path)
        trainer = trl.SFTTrainer(
            model=loop.model(tmp_path, "sdpa"),
            args=args,
            train_dataset=indices.with_transform(processed),
            data_collator=VlmCollator(tmp_path / "model"),
            processing_class=processor_of(tmp_path / "model"),
        )
        lengths = [sample["input_ids"].numel() for sample in samples]
        pack_batches(trainer, max_tokens=loop.MAX_TOKENS, length=lengths)
        trainer.train()
    for name, weight in trainer.model.state_dict().items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=TOLERANCE)
