"""The store of a cache: what is written is read, or told to be damaged, and never wrong."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import cached_numbers
import pytest
from cached_numbers import CONTEXT, key_of, payload_of, stored

from flowtrain.cache import CacheError, CacheFolder, Context, Reader, Writer, folder, writer

KIB = 1 << 10


def bytes_of(path: Path) -> int:
    return sum(f.stat().st_size for f in path.rglob("*") if f.suffix in (".dat", ".idx"))


def fill(cache: CacheFolder, context: Context, numbers: range, **options: object) -> list[str]:
    """Store numbers; return the lines that the writer has told."""
    told: list[str] = []
    with cache.use(context) as place:
        writing = Writer(cache, place, told.append)
        for number in numbers:
            writing.put(key_of(number), payload_of(number))
        writing.close()
    return told


def test_payloads_are_read_back_also_while_they_are_written(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache")
    with cache.use(CONTEXT) as place:
        reader = Reader(place)
        assert reader.get(key_of(0)) is None
        two = [Writer(cache, place), Writer(cache, place)]
        for number in range(300):
            assert two[number % 2].put(key_of(number), payload_of(number))
            # Nobody stores it a second time.
            assert not two[number % 3 % 2].put(key_of(number), payload_of(number))
            found = reader.get(key_of(number))
            assert found is not None and found.tobytes() == payload_of(number).tobytes()
        for each in two:
            each.close()
        reader.close()
        assert len(list(place.glob("*.dat"))) == 2
        assert stored(place, 310) == list(range(300))


def test_a_flipped_byte_or_a_cut_file_is_told_and_stored_again(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache")
    fill(cache, CONTEXT, range(50))
    place = cache.path / CONTEXT.name
    clean = {path: path.read_bytes() for path in (place / "0.dat", place / "0.idx")}
    flips = random.Random(5)
    for path, data in clean.items():
        for _ in range(30):
            damaged = bytearray(data)
            at = flips.randrange(50 * 64 if path.suffix == ".idx" else len(data))
            damaged[at] ^= 1 << flips.randrange(8)
            path.write_bytes(damaged)
            told: list[str] = []
            reader = Reader(place, told.append)
            missing = []
            for number in range(50):
                found = reader.get(key_of(number))
                if found is None:
                    missing.append(number)
                else:
                    assert found.tobytes() == payload_of(number).tobytes()
            reader.close()
            assert len(missing) == len(told) <= 1, (path, at, told)
            assert missing or path.suffix == ".dat"  # It may lie between two payloads.
        path.write_bytes(data)

    os.truncate(place / "0.dat", 30_000)
    lost = sorted(set(range(50)) - set(stored(place, 50, damaged=True)))
    assert lost
    size = len(os.listdir(place))
    for _ in range(2):
        fill(cache, CONTEXT, range(50))
        assert stored(place, 50) == list(range(50))
        # What was damaged is not stored again each time.
        assert len((place / "0.idx").read_bytes()) == (50 + len(lost)) * 64
    assert len(os.listdir(place)) == size


def test_the_bound_holds_and_what_fits_stays(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache", 100 * KIB)
    old, other, new = (Context({"model": name}) for name in "abc")
    assert fill(cache, old, range(5)) == []
    os.utime(cache.path / old.name / "in_use", (1, 1))
    assert fill(cache, other, range(5)) == []
    with cache.use(other):
        told = fill(cache, new, range(1000))
    assert bytes_of(cache.path) <= 100 * KIB
    assert len(told) == 1 and "within flow.cache.max_bytes=102400" in told[0]
    # The context that nobody uses made room, and the other one is there.
    assert not (cache.path / old.name).exists()
    assert stored(cache.path / other.name, 5) == list(range(5))
    found = stored(cache.path / new.name, 1000)
    assert found == list(range(len(found))) and len(found) > 15
    # Nothing is admitted in the place of what is there, and a rerun keeps it.
    fill(cache, new, range(500, 600))
    assert stored(cache.path / new.name, 1000)[: len(found)] == found
    assert bytes_of(cache.path) <= 100 * KIB


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "open"])
def test_a_full_disk_stops_writing_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    cache = CacheFolder(tmp_path / "cache")
    fill(cache, CONTEXT, range(5))

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    told: list[str] = []
    with cache.use(CONTEXT) as place:
        writing = Writer(cache, place, told.append)
        with monkeypatch.context() as patch:
            patch.setattr(writer.os, call, full)
            assert not any(writing.put(key_of(n), payload_of(n)) for n in range(10, 20))
        writing.close()
    assert len(told) == 1 and "No space left" in told[0]
    assert stored(place, 20) == list(range(5))
    # With space again, the next writer goes on in the same files.
    fill(cache, CONTEXT, range(20))
    assert stored(place, 20) == list(range(20))
    assert len(list(place.glob("*.dat"))) == 1


def test_a_kill_between_two_writes_leaves_no_entry_without_its_payload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(file: int, data: memoryview, offset: int) -> None:
        nonlocal left
        if (left := left - 1) < 0:
            raise Killed
        os.pwrite(file, data[: len(data) if left else len(data) // 2], offset)

    cache = CacheFolder(tmp_path / "cache")
    fill(cache, CONTEXT, range(5))
    for writes in range(4):
        left = writes
        with cache.use(CONTEXT) as place, monkeypatch.context() as patch:
            patch.setattr(writer, "_write", kill)
            with pytest.raises(Killed):
                for number in (10 + writes, 20 + writes):
                    Writer(cache, place).put(key_of(number), payload_of(number))
    assert stored(place, 30) == [*range(5), 13]


def kills(path: Path, *, count: int, writers: int, seed: int) -> None:
    """Kill writers at random moments, as many times; what is left must be right, and not grow."""
    limit, each = 1 << 26, 2000
    chance = random.Random(seed)
    command = [sys.executable, cached_numbers.__file__, str(path), str(limit)]
    place = path / CONTEXT.name
    for turn in range(count):
        numbers = [str(turn * each), str((turn + 1) * each)]
        started = [
            subprocess.Popen(
                [*command, *numbers, str(chance.randrange(1 << 30))], stdout=subprocess.PIPE
            )
            for _ in range(writers)
        ]
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == b"started\n"
        time.sleep(chance.random() * 0.1)
        for process in started:
            process.kill()
            assert process.wait() == -signal.SIGKILL
            assert process.stdout is not None
            process.stdout.close()
        assert bytes_of(path) <= limit
        assert len(list(place.glob("*.idx"))) <= writers
    found = stored(place, count * each)
    assert 0 < len(found) < count * each  # They were killed while they wrote.
    fill(CacheFolder(path, limit), CONTEXT, range(each))
    assert {*found} <= {*stored(place, count * each)} <= {*found, *range(each)}
    files = {f"{n}.{kind}" for n in range(writers) for kind in ("idx", "dat")}
    assert {file.name for file in place.iterdir()} == {"context.json", "in_use", *files}
    assert {file.name for file in path.iterdir()} == {"cache.json", "lock", CONTEXT.name}


def test_kills_of_two_writers_leave_only_whole_payloads(tmp_path: Path) -> None:
    kills(tmp_path / "cache", count=3, writers=2, seed=1)


@pytest.mark.deep
def test_ten_kills_of_two_writers_leave_only_whole_payloads(tmp_path: Path) -> None:
    kills(tmp_path / "cache", count=10, writers=2, seed=2)


def test_a_kill_while_a_context_is_removed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CacheFolder(tmp_path / "cache")
    fill(cache, CONTEXT, range(5))

    class Killed(BaseException):
        pass

    def kill(_: Path) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(folder.shutil, "rmtree", kill)
        with pytest.raises(Killed):
            cache.clear()
    fill(cache, CONTEXT, range(7, 9))
    assert stored(cache.path / CONTEXT.name, 10) == [7, 8]
    assert cache.clear() > 0
    assert {path.name for path in cache.path.iterdir()} == {"cache.json", "lock"}


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CacheError, match=r"thesis\.tex"):
        CacheFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CacheError, match="file"):
        CacheFolder(file)


def test_a_new_context_beside_others_is_told(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache")
    first = Context({"weights": "a", "versions": {"torch": "1", "pillow": "2"}})
    other = Context({"weights": "a", "versions": {"torch": "1", "pillow": "3"}, "threads": 4})
    assert cache.news(first) is None
    fill(cache, first, range(1))
    assert cache.news(first) is None
    told = cache.news(other)
    assert told is not None and told.endswith("in threads, versions.pillow")


def test_contexts_are_listed_and_those_in_use_are_not_cleared(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache")
    for name in "ab":
        fill(cache, Context({"model": name}), range(10))
    with cache.use(CONTEXT):
        listed = {each.description["model"]: each for each in cache.contexts()}
        assert [listed[name].in_use for name in "ab"] == [True, False]
        assert listed["b"].entries == 10
        assert cache.clear() == listed["b"].bytes >= sum(len(payload_of(n)) for n in range(10))
    assert [each.description for each in cache.contexts()] == [CONTEXT.description]


@pytest.mark.deep
def test_six_hundred_thousand_entries_open_within_their_memory(tmp_path: Path) -> None:
    from flowtrain.cache.entries import pack

    with (tmp_path / "0.idx").open("wb") as file:
        for number in range(600_000):
            file.write(pack(key_of(number), offset=number * 64, size=64, payload_crc=number))
    (tmp_path / "0.dat").touch()
    # Not ru_maxrss, which has the peak of the process that started this one, too.
    program = (
        "import sys, time; from pathlib import Path; from flowtrain.cache import Reader\n"
        "start = time.perf_counter(); reader = Reader(Path(sys.argv[1]))\n"
        "status = Path('/proc/self/status').read_text().split()\n"
        "print(len(reader), time.perf_counter() - start, status[status.index('VmHWM:') + 1])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    entries, seconds, kib = map(float, output.split())
    print(f"{entries:.0f} entries in {seconds:.2f} s, {kib / 1024:.0f} MiB")
    assert entries == 600_000 and kib * 1024 < 200e6
