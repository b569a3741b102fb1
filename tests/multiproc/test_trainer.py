"""The Trainer with packed batches has the losses and weights of a plain loop, also resumed."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from forked import start_program
from support import imported, torch_world
from transformers.utils import ModelOutput

from flowtrain.data.order import SampleOrder
from flowtrain.integrations import pack_batches
from flowtrain.integrations.trainer import _collated, _Filler
from flowtrain.packing import PackingError

PROGRAM = Path(__file__).with_name("trainer_loop.py")


@pytest.fixture(scope="module")
def loop() -> ModuleType:
    return imported(PROGRAM)


def run(folder: Path, how: str) -> dict[str, Any]:
    with torch_world(2) as world:
        ranks = [start_program(PROGRAM, folder, rank, how, **world) for rank in range(2)]
        assert [rank.wait(timeout=100) for rank in ranks] == [0, 0]
    name = {"resume": "resumed.pt", "start": "whole.pt"}[how]
    return torch.load(folder / name)


def plain(loop: ModuleType) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same steps, sample by sample in one process: means over the target tokens of a step."""
    rows, model = loop.Texts().rows, loop.model()
    optim = torch.optim.SGD(model.parameters(), lr=loop.RATE)
    losses = []
    for epoch in range(loop.EPOCHS):
        lines = SampleOrder(len(rows), loop.SEED, True).of_epoch(epoch).tolist()
        size = loop.BATCH * loop.MICROBATCHES * loop.RANKS
        for start in range(0, len(lines), size):
            step = [rows[line] for line in lines[start : start + size]]
            targets = sum(label != -100 for row in step for label in row["labels"][1:])
            loss = 0.0
            for row in step:
                batch = {name: torch.tensor([row[name]]) for name in ("input_ids", "labels")}
                one = model(**batch, num_items_in_batch=targets).loss
                one.backward()
                loss += one.item()
            losses.append(loss)
            optim.step()
            optim.zero_grad()
    return losses, model.state_dict()


@pytest.mark.limit(240)
def test_two_ranks_train_like_a_plain_loop_and_resume_from_a_checkpoint(
    loop: ModuleType, tmp_path: Path
) -> None:
    losses, weights = plain(loop)
    whole = run(tmp_path, "start")
    assert "rank 1 has max_tokens=131, but rank 0 has 130" in whole["differing"]
    assert "the loader was closed" in whole["afterwards"]
    for name, weight in weights.items():  # Losses are float32 for every dtype of the model.
        torch.testing.assert_close(whole["model"][name], weight, rtol=0, atol=1e-6)
    assert whole["losses"] == pytest.approx(losses, abs=1e-4)  # Rounded, as the Trainer logs them.

    # Without the last checkpoint, training resumes from the one before.
    last = tmp_path / f"checkpoint-{loop.EPOCHS * loop.STEPS}"
    shutil.rmtree(last)
    resumed = run(tmp_path, "resume")
    for name, weight in whole["model"].items():
        assert torch.equal(resumed["model"][name], weight)
    # All samples for their sizes, and then the rest of this rank's epoch.
    left = (loop.STEPS - 2) * loop.BATCH * loop.MICROBATCHES
    assert resumed["read"] <= loop.SAMPLES + left + loop.MICROBATCHES


def test_samples_above_the_cap_are_dropped_with_a_warning(
    loop: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import DataCollatorWithFlattening, Trainer

    data = loop.Texts()
    trainer = Trainer(
        model=loop.model(),
        args=loop.arguments(tmp_path),
        train_dataset=data,
        data_collator=DataCollatorWithFlattening(),
    )
    pack_batches(trainer, max_tokens=30, oversize="drop")
    batches = list(trainer.get_train_dataloader())
    short = [row for row in data.rows if len(row["input_ids"]) <= 30]
    assert f"{len(data) - len(short)} of {len(data)} samples are above" in caplog.text
    read = sum(batch["input_ids"].numel() for batch in batches if (batch["labels"] >= 0).any())
    assert read == sum(len(row["input_ids"]) for row in short)


def test_workers_start_like_those_of_the_trainer_and_are_seeded_by_rank(
    loop: ModuleType, tmp_path: Path
) -> None:
    from transformers import Trainer
    from transformers.trainer_utils import seed_worker

    options = {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": "spawn"}
    args = loop.arguments(tmp_path, **options)
    trainer = Trainer(model=loop.model(), args=args, train_dataset=loop.Texts())
    pack_batches(trainer, max_tokens=130, length=[1] * loop.SAMPLES)
    made: Any = trainer.get_train_dataloader()
    seeded = made.worker_init_fn
    assert (seeded.func, seeded.keywords) == (seed_worker, {"num_workers": 1, "rank": 0})
    assert made.multiprocessing_context.get_start_method() == "spawn"


def test_a_model_that_takes_no_target_tokens_gets_the_same_loss(
    loop: ModuleType, tmp_path: Path
) -> None:
    from transformers import Trainer

    model = loop.model()
    tokens = torch.tensor([loop.Texts()[0]["input_ids"]])
    batch = {"input_ids": tokens, "labels": tokens}
    expected = model(**batch, num_items_in_batch=1000).loss.item()
    model.accepts_loss_kwargs = False  # As in the classes of the Qwen-VL families.

    def trainer(**others: Any) -> Any:
        args = loop.arguments(tmp_path, **others)
        return Trainer(model=model, args=args, train_dataset=loop.Texts())

    packed = trainer()
    pack_batches(packed, max_tokens=130)
    weighted = packed.compute_loss(model, dict(batch), num_items_in_batch=1000).item()
    assert weighted == pytest.approx(expected, rel=1e-6)
    assert weighted != pytest.approx(model(**batch).loss.item(), rel=1e-3)
    with pytest.raises(PackingError, match=r"label_smoothing_factor=0\.1: LlamaForCausalLM takes"):
        pack_batches(trainer(label_smoothing_factor=0.1), max_tokens=130)
    experts = ModelOutput(logits=torch.zeros(1, 2, 3), aux_loss=torch.ones(()))
    with pytest.raises(PackingError, match="auxiliary loss.*output_router_logits=False"):
        packed.compute_loss_func(experts, tokens, num_items_in_batch=1)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_model_with_adapters_gets_the_same_loss(loop: ModuleType, tmp_path: Path) -> None:
    from transformers import Trainer

    peft = pytest.importorskip("peft")
    model = loop.model()
    model.accepts_loss_kwargs = False
    lora = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False)
    args = loop.arguments(tmp_path)
    trainer = Trainer(model=peft.get_peft_model(model, lora), args=args, train_dataset=loop.Texts())
    pack_batches(trainer, max_tokens=130)
    tokens = torch.tensor([loop.Texts()[0]["input_ids"]])
    batch = {"input_ids": tokens, "labels": tokens}
    weighted = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=1000).item()
    whole = trainer.model(**batch).loss.item() * (tokens.numel() - 1)
    assert weighted == pytest.approx(whole / 1000, rel=1e-6)


def test_a_trainer_that_would_not_keep_the_loss_exact_is_refused(
    loop: ModuleType, tmp_path: Path
) -> None:
    from transformers import Trainer

    class Means(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            raise AssertionError

    def refused(model: Any, **others: Any) -> str:
        trainer = Trainer(
            model=model,
            args=loop.arguments(tmp_path, **others),
            train_dataset=loop.Texts(),
        )
        with pytest.raises(PackingError) as caught:
            pack_batches(trainer, max_tokens=130)
        return str(caught.value)

    plain = refused(Means())
    assert (
        "Means" in plain and "forward takes no **kwargs" in plain and "compute_loss_func" in plain
    )
    forbidden = loop.model()
    forbidden.accepts_loss_kwargs = False
    forbidden.loss_function = torch.nn.functional.cross_entropy
    said = refused(forbidden)
    assert "accepts_loss_kwargs is False" in said and "set model.accepts_loss_kwargs = True" in said
    assert "forward takes no" not in said
    strategy = refused(loop.model(), train_sampling_strategy="batch_rebalance")
    assert "args.train_sampling_strategy=batch_rebalance" in strategy
    assert "args.dataloader_in_order=False" in refused(loop.model(), dataloader_in_order=False)

    trainer = Trainer(
        model=loop.model(),
        args=loop.arguments(tmp_path),
        train_dataset=loop.Texts(),
        data_collator=lambda samples: {"input_ids": samples, "targets": samples},
    )
    pack_batches(trainer, max_tokens=130)
    with pytest.raises(PackingError, match="input_ids, targets but no labels"):
        trainer.train()


def test_masking_the_labels_of_a_filler_keeps_its_tokens() -> None:
    def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
        tokens = torch.tensor(rows)
        return {"input_ids": tokens, "labels": tokens}

    batch = _collated(collate, _Filler([[3, 4]]))
    assert batch["input_ids"].tolist() == [[3, 4]]
    assert batch["labels"].tolist() == [[-100, -100]]
