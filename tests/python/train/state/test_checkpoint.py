from __future__ import annotations

import json
import math
import os
import pickle
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from linear_run import configuration, train
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from flowtrain.data.records import SEGMENT_RECORDS
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain.train.state.checkpoint_files import (
    CheckpointError,
    best,
    read_meta,
    valid_checkpoints,
)
from flowtrain.train.state.logs import LOGS, SPOOL
from flowtrain.train.state.resume import FINGERPRINT


@pytest.mark.parametrize("background", [False, True])
def test_a_checkpoint_that_cannot_be_written_or_read_is_named_with_the_cause(
    background: bool, folder: Path
) -> None:
    config = configuration(folder, checkpoint={"background": background})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(
            CheckpointError, match=r"step-00000002\.part/backbone: OSError: .*File too large"
        ):
            train(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    train(config)
    newest = config.run / "checkpoints/step-00000004"
    (newest / "backbone/.metadata").unlink()
    way_out = f"remove {newest} to take the checkpoint before it"
    with pytest.raises(CheckpointError, match=f"step-00000004/backbone: .*No such file.*{way_out}"):
        train(config, first=4)


def test_a_save_in_the_background_has_the_tensors_of_its_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later steps change neither weights nor moments of a checkpoint that is being written."""
    write, saved = Checkpoints._write, []

    def late(*arguments: Any) -> None:
        time.sleep(0.1)  # The next step takes a millisecond.
        write(*arguments)

    monkeypatch.setattr(Checkpoints, "_write", late)
    for background in (False, True):
        config = configuration(folder, checkpoint={"background": background, "every": 1})
        train(config)
        saved.append(
            {
                (step, path.name): path.read_bytes()
                for step, folder in valid_checkpoints(config.run).items()
                for path in folder.glob("backbone/*.distcp")
            }
        )
        shutil.rmtree(config.run / "checkpoints")
    assert saved[0] == saved[1]
    assert len(saved[0]) == 6


@pytest.mark.parametrize("mark", [None, "", "[]", '{"step": 3}', '{"step": 3, "cursor'])
def test_a_damaged_mark_is_named_with_the_way_out(mark: str | None, tmp_path: Path) -> None:
    path = tmp_path / "mark.json"
    if mark is not None:
        path.write_text(mark)
    with pytest.raises(CheckpointError, match=f"{path}: .*remove {tmp_path} to take the"):
        read_meta(tmp_path)


class Touch:
    """Something that writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["call", "attribute", "bytes", "rank", "damaged"])
def test_a_checkpoint_whose_metadata_runs_code_is_refused(kind: str, folder: Path) -> None:
    config = configuration(folder)
    train(config)
    path = config.run / "checkpoints" / "step-00000004" / "backbone" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    ran = folder / "ran"
    cause = r"\.metadata names "
    if kind == "call":
        metadata.planner_data = Touch(ran)
        path.write_bytes(pickle.dumps(metadata))
    elif kind == "attribute":
        # A function that a module with allowed names has imported.
        command = f"cos.system\n(S'touch {ran}'\ntR.".encode()
        path.write_bytes(command.replace(b"cos.", b"ctorch.serialization\nos."))
    elif kind == "bytes":
        # torch would unpickle the contents of what is no tensor.
        metadata.state_dict_metadata["model.bias"] = BytesStorageMetadata()
        path.write_bytes(pickle.dumps(metadata))
    elif kind == "rank":
        # Which torch reads if `.metadata` has nothing.
        path.write_bytes(pickle.dumps(None))
        path.with_name("__0.metadata").write_bytes(pickle.dumps(Touch(ran)))
        cause = r"__0\.metadata names "
    else:
        path.write_bytes(path.read_bytes()[:-40])
        cause = r"\.metadata is damaged: "
    with pytest.raises(CheckpointError, match=f"step-00000004/backbone: OSError: {cause}"):
        train(config, first=4)
    assert not ran.exists()


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one rank; it passes errors by pickle, as larger ones do."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_disk_that_becomes_full_within_a_tensor_is_named(
    ranks: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"small": torch.zeros(4), "large": torch.zeros(2000)}
    monkeypatch.setattr("flowtrain.train.state.checkpoint._tensors", lambda *_: state)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match=r"backbone: OSError: .*File too large.*--resume"):
            train(configuration(folder), ranks=ranks)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_cannot_be_completed_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("flowtrain.train.state.checkpoint.commit", fill_disk)
    with pytest.raises(CheckpointError, match=r"step-00000002\.part: OSError: no space"):
        train(configuration(folder))


def test_a_checkpoint_is_valid_only_when_its_steps_are_in_the_logs_on_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(folder)
    logs = [config.run / name for name in LOGS]
    for log in logs:
        log.touch()
    flushed = set()
    fsync = os.fsync

    def remember(descriptor: int) -> None:
        flushed.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    def check(*_: Any) -> None:
        assert flushed >= set(logs)

    monkeypatch.setattr(os, "fsync", remember)
    monkeypatch.setattr("flowtrain.train.state.checkpoint.commit", check)
    train(configuration(folder))
    assert flushed


@pytest.mark.parametrize("optimizer", [{"name": "adamw"}, {"name": "sgd", "momentum": 0.9}])
def test_a_projector_is_not_stepped_without_images_also_after_a_resume(
    optimizer: dict[str, Any], folder: Path
) -> None:
    optim = {**optimizer, "lr": 0.1, "weight_decay": 0.1, "decay_vectors": True}
    config = configuration(folder, optim=optim)
    without_images = (0, 1, 4)
    _, module = train(config, without_images=without_images)
    assert all(parameter.grad is None for parameter in module.trainable)

    torch.manual_seed(config.train.seed)
    plain = torch.nn.Linear(3, 2)
    kind: Any = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer["name"]]
    options = {"momentum": 0.9} if optimizer["name"] == "sgd" else {}
    truth = kind(plain.parameters(), lr=0.1, weight_decay=0.1, **options)
    for step in range(config.train.steps):
        torch.manual_seed(step)
        for parameter in plain.parameters():
            parameter.grad = torch.randn_like(parameter)
        if step in without_images:
            plain.bias.grad = None
        truth.step()
    torch.testing.assert_close(module.module.state_dict(), plain.state_dict())

    # The checkpoint of step 2 has been written before the projector was stepped.
    _, resumed = train(config, first=2, without_images=without_images)
    for name, value in module.module.state_dict().items():
        assert torch.equal(resumed.module.state_dict()[name], value), name


def test_the_best_and_the_newest_checkpoints_are_kept(folder: Path) -> None:
    run = folder / "run"
    options = {"every": 2, "path": folder / "held_out.jsonl"}
    config = configuration(folder, checkpoint={"every": 1, "keep": 2}, eval=options)

    def train_on(held_out: str, losses: dict[int, float], *, first: int = 0) -> list[int]:
        (run / FINGERPRINT).write_text(json.dumps({"held_out": held_out}))
        train(config, first, eval_losses=losses)
        return list(valid_checkpoints(run))

    assert train_on("one", {1: 3.0, 3: 4.0, 5: math.nan}) == [2, 5, 6]
    assert best(run) == run / "checkpoints" / "step-00000002"
    # A loss on other samples is not compared with it.
    config = configuration(folder, train={"steps": 8}, checkpoint={"keep": 2}, eval=options)
    assert train_on("two", {7: 5.0}, first=6) == [6, 8]
    assert best(run) == run / "checkpoints" / "step-00000008"


def test_records_that_no_kept_checkpoint_needs_are_removed(folder: Path) -> None:
    options = {"every": 2, "path": folder / "held_out.jsonl"}
    config = configuration(folder, checkpoint={"every": 2, "keep": 2}, eval=options)
    (config.run / FINGERPRINT).write_text(json.dumps({"held_out": "one"}))
    spool = config.run / SPOOL
    spool.mkdir()
    for segment in range(8):
        (spool / f"{segment:09}.jsonl").touch()
    train(config, eval_losses={1: 1.0, 3: 2.0, 5: 2.0}, draws=SEGMENT_RECORDS)
    # The best checkpoint is kept for its weights, and does not keep the records after it.
    assert list(valid_checkpoints(config.run)) == [2, 4, 6]
    # After step 4, and one more.
    assert [int(path.stem) for path in sorted(spool.iterdir())] == [3, 4, 5, 6, 7]
