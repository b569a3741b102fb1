"""A stream in its spool: epochs, kills, resumes, and streams that have changed."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from flowtrain.data import DataError
from flowtrain.data.records import SEGMENT_RECORDS, Spool, drop_before
from flowtrain.data.records.spool import segments
from flowtrain.train.input import spooling
from flowtrain.train.input.spooling import StreamReader
from flowtrain.train.state.files import RunFileError

EPOCH = 200


class Rows:
    """An iterable data set with another order in each epoch, and no state."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in range(EPOCH):
            yield {
                "row": (row * 7 + self.epoch) % EPOCH,
                "epoch": self.epoch,
                "text": "ä\u2028\ud800",
            }


class WithState(Rows):
    """The same with a state, of values that JSON cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": torch.tensor(self.at), "pair": (1, b"2")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["pair"] == (1, b"2")
        self.at = int(state["at"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = list(super().__iter__())
        while self.at < len(rows):
            self.at += 1
            yield rows[self.at - 1]
        self.at = 0


class Buffered(WithState):
    """Holds records back in a buffer that its state leaves out."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        buffer = []
        for record in super().__iter__():
            buffer.append(record)
            if len(buffer) > 30:
                yield buffer.pop(7)
        yield from buffer


@dataclass
class Made:
    """Makes the data set of `flowtrain_streams:make`."""

    make: Any


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Made(Rows)
    monkeypatch.setattr(f"{__name__}.make", lambda: made.make(), raising=False)
    return made


SPEC = f"{__name__}:make"


def expected(kind: type[Rows], count: int) -> list[dict[str, Any]]:
    """Records of a data set that is read without a stop."""
    records: list[dict[str, Any]] = []
    rows, epoch = kind(), 0
    while len(records) < count:
        rows.set_epoch(epoch)
        records += rows
        epoch += 1
    return records[:count]


def read_to(folder: Path, end: int, *, cursor: int = 0, each: int = 37) -> StreamReader:
    reader = StreamReader(SPEC, folder)
    known = cursor
    while known < end:
        known, _ = reader.read_until(known, min(known + each, end))
    return reader


def spooled(folder: Path, count: int) -> list[dict[str, Any]]:
    spool = Spool(SPEC, folder)
    return [spool.record(sample) for sample in range(count)]


@pytest.mark.parametrize("kind", [Rows, WithState, Buffered])
@pytest.mark.parametrize("killed_at", [1, 150, 200, 470])
def test_a_killed_and_resumed_stream_has_each_record_once(
    kind: type[Rows], killed_at: int, made: Made, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made.make = kind
    folder = tmp_path / "stream"
    reader = read_to(folder, killed_at)
    # Killed in the middle of a record, which the state file does not count.
    last = segments(folder)[-1]
    reader._file.write(b'{"row": 1}\n{"ro')
    reader._file.flush()
    assert last.read_bytes().endswith(b'{"ro')
    reader._lock.close()
    resumed = read_to(folder, 650)
    assert spooled(folder, 650) == expected(kind, 650)
    assert resumed.read_until(650, 650) == (650, EPOCH)
    # Only a buffer that the state leaves out makes it necessary to read the epoch again.
    begin_again = kind is Buffered and killed_at > 1
    assert ("reading epoch" in capfd.readouterr().err) == begin_again
    drop_before(folder, 10)
    assert len(segments(folder)) == 1


class Moved(Rows):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = list(super().__iter__())
        yield from [*rows[:120], rows[119], *rows[120:]]


class MovedWithState(WithState):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for record in super().__iter__():
            yield record | {"text": "new"} if self.at > 120 else record


class Skipping(WithState):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.at += 1


class Random(Rows):
    order = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        Random.order += 1
        yield from ({"row": row, "order": self.order} for row in range(EPOCH))


@pytest.mark.parametrize(
    ("before", "after", "sample"),
    [(Rows, Moved, 120), (WithState, MovedWithState, 120), (Random, Random, 0)],
)
def test_a_stream_that_changed_before_the_resume_is_refused(
    before: type[Rows], after: type[Rows], sample: int, made: Made, tmp_path: Path
) -> None:
    made.make = before
    read_to(tmp_path, 150)._lock.close()
    made.make = after
    message = rf"{SPEC}: item {sample} is another record than before this run was resumed"
    with pytest.raises(DataError, match=message):
        read_to(tmp_path, 151)


def test_a_state_that_continues_at_another_record_is_not_used(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made.make = Skipping
    # Calls return after each record.
    monkeypatch.setattr(spooling, "_ANSWER_S", 0.0)
    read_to(tmp_path, 150)._lock.close()
    read_to(tmp_path, 160)
    assert spooled(tmp_path, 160) == expected(Rows, 160)
    assert re.search(r"is not record \d+, so that its state_dict is inc", capfd.readouterr().err)


def test_segments_before_a_record_are_removed_and_the_rest_is_resumed(
    made: Made, tmp_path: Path
) -> None:
    total = 3 * SEGMENT_RECORDS
    read_to(tmp_path, total, each=total)._lock.close()
    names = [path.name for path in segments(tmp_path)]
    drop_before(tmp_path, 2 * SEGMENT_RECORDS - 1)
    assert [path.name for path in segments(tmp_path)] == names
    drop_before(tmp_path, 2 * SEGMENT_RECORDS)
    assert [path.name for path in segments(tmp_path)] == names[1:]
    read_to(tmp_path, total + 10)
    spool, whole = Spool(SPEC, tmp_path), expected(Rows, total + 10)
    assert [spool.record(n) for n in range(SEGMENT_RECORDS, total + 10)] == whole[SEGMENT_RECORDS:]
    with pytest.raises(DataError, match=r"item 5: .*000000000\.jsonl is missing; restore the file"):
        spool.record(5)


def test_only_one_process_writes_a_spool_and_damage_is_an_error(made: Made, tmp_path: Path) -> None:
    reader = read_to(tmp_path, 20)
    with pytest.raises(DataError, match="another process writes .*start again with --resume once"):
        StreamReader(SPEC, tmp_path)
    reader._lock.close()
    with pytest.raises(
        DataError, match=r"has 20 records of the stream, and the checkpoint conti.* 21"
    ):
        read_to(tmp_path, 30, cursor=21)
    with pytest.raises(DataError, match="item 20: .* ends before it"):
        Spool(SPEC, tmp_path).record(20)
    (last,) = segments(tmp_path)
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{last}: it has \d+ bytes, and .*state\.json says \d+; "):
        StreamReader(SPEC, tmp_path)
    state = tmp_path / "state.json"
    state.write_text(state.read_text()[:20])
    with pytest.raises(RunFileError, match=rf"{state}: not JSON .*; restore it and continue with"):
        StreamReader(SPEC, tmp_path)


class Once:
    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from ({"row": row} for row in range(3))
        raise OSError("no such shard")


@pytest.mark.parametrize(
    ("make", "records", "message"),
    [
        (Once, 3, r"item 3: the data set raised OSError: no such shard; correct the cause and"),
        (lambda: ({} for _ in range(4)), 4, "epoch 0 ended after record 3, and epoch 1 has no re"),
        (lambda: iter(()), 0, "no records; return at least one"),
        (lambda: iter([{}, [1]]), 1, r"item 1 is a list, \[1\]; it must be a dict, such as"),
        (
            lambda: iter([{"images": [{1}]}]),
            0,
            r"item 0: the record has \{1\}, which JSON cannot hold; a record consists of",
        ),
        (lambda: iter([{(1, 2): 3}]), 0, "item 0: keys must be str.*; a record consists of"),
    ],
)
def test_records_before_an_error_are_read_and_the_error_stays(
    make: Any, records: int, message: str, made: Made, tmp_path: Path
) -> None:
    made.make = make
    reader = StreamReader(SPEC, tmp_path)
    known = 0
    while known < records:
        known, _ = reader.read_until(known, 10)
    for _ in range(2):
        with pytest.raises(DataError, match=f"data.dataset={SPEC}: {message}"):
            reader.read_until(known, 10)
    assert len(spooled(tmp_path, records)) == records


class Unstorable(WithState):
    def state_dict(self) -> dict[str, Any]:
        return {"iterator": Path()}


def test_a_state_that_cannot_be_stored_is_an_error(made: Made, tmp_path: Path) -> None:
    made.make = Unstorable
    with pytest.raises(
        DataError, match=r"state_dict returned a dict, \{'iterator'.*; return numbers"
    ):
        read_to(tmp_path, 100)


def test_values_are_those_of_a_jsonl_file(made: Made, tmp_path: Path) -> None:
    record = {
        "floats": [0.1, 1e300, -0.0, 1 / 3],
        "ints": [2**70, -1],
        "text": "\u00e4\u2028\U0001f600\ud800\x00\n",
        "none": None,
        "path": Path("a/b.png"),
        "pair": (True, False),
    }
    made.make = lambda: iter([record])
    read_to(tmp_path, 1)
    read = spooled(tmp_path, 1)[0]
    assert read == {**record, "path": "a/b.png", "pair": [True, False]}
    assert json.dumps(read) == json.dumps(json.loads(json.dumps(read)))
    assert str(read["floats"][2]) == "-0.0"


def test_a_stream_of_hugging_face_datasets_continues_from_its_state(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for shard in range(3):
        lines = [json.dumps({"row": 100 * shard + row, "note": None}) for row in range(70)]
        tmp_path.joinpath(f"{shard}.jsonl").write_text("\n".join(lines) + "\n")

    def make(shuffled: bool) -> Any:
        files = [str(tmp_path / f"{shard}.jsonl") for shard in range(3)]
        rows = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
        return rows.shuffle(seed=3, buffer_size=20) if shuffled else rows

    for shuffled in (False, True):
        made.make = lambda: make(shuffled)  # noqa: B023
        whole, folder = tmp_path / "whole", tmp_path / "killed"
        read_to(whole, 500)
        for end in (150, 320, 500):
            read_to(folder, end)._lock.close()
        first = spooled(whole, 500)
        assert spooled(folder, 500) == first
        assert len({row["row"] for row in first[:210]}) == 210
        assert (first[:210] != first[210:420]) == shuffled
        assert ("reading epoch" in capfd.readouterr().err) == shuffled
        for each in (whole, folder):
            shutil.rmtree(each)


def test_a_reader_that_is_killed_at_any_moment_loses_and_repeats_nothing(
    made: Made, tmp_path: Path
) -> None:
    made.make = WithState
    total, rng = 900, random.Random(0)
    for kill in range(31):
        if (pid := os.fork()) == 0:
            with suppress(BaseException):
                read_to(tmp_path, total, each=3)
                os._exit(0)
            os._exit(1)
        if kill < 30:
            time.sleep(rng.uniform(0, 0.08))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert status in (0, signal.SIGKILL)
    assert status == 0
    assert spooled(tmp_path, total) == expected(WithState, total)
