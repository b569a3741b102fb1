"""Stream words: order, waits, and poison after the death of a writer."""

from __future__ import annotations

import time
from pathlib import Path

import gpu_peers
import pytest
import torch
from gpu_peers import hear, peer

from flowtrain_core import CudaError, Pool, Producer, cuda

pytestmark = [pytest.mark.gpu, pytest.mark.limit(120)]

SLAB = 4 << 20


@pytest.mark.parametrize("how", ["write_on", "store_on"])
def test_a_reader_of_the_value_sees_earlier_writes_of_the_stream(
    how: str, pool: Pool, device: int
) -> None:
    cuda.register_host(pool, device=device)
    host = torch.from_dlpack(Producer(pool).lease((SLAB,), "uint8", timeout_s=5))
    rounds = torch.arange(64, dtype=torch.uint8, device="cuda").repeat_interleave(SLAB)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with cuda.Word(device=device) as word:
        for value in range(1, 64):
            source = rounds[value * SLAB :].data_ptr()
            cuda.copy_to_host(
                host.data_ptr(), source, SLAB, device=device, stream=stream.cuda_stream
            )
            getattr(word, how)(stream.cuda_stream, value)
            assert word.wait(value, timeout_s=30) == value
            assert int(host[-1]) == value
            assert torch.all(host == value)
        stream.synchronize()


def test_a_stream_waits_for_a_value_of_another_process(device: int, tmp_path: Path) -> None:
    path = str(tmp_path / "word.sock")
    target = torch.zeros(1, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with cuda.Word(device=device) as word:
        word.serve(path)
        word.wait_on(stream.cuda_stream, 3)
        with torch.cuda.stream(stream):
            target.fill_(1)
            done = torch.cuda.Event()
            done.record()
        word.store(2)
        time.sleep(0.2)
        early = done.query()
        with peer(gpu_peers.set_word, path, 3) as pipe:
            hear(pipe)
        stream.synchronize()
        assert not early
        assert float(target) == 1


def test_poison_releases_streams_and_host_threads(device: int, tmp_path: Path) -> None:
    path = str(tmp_path / "word.sock")
    stream = torch.cuda.Stream()
    with cuda.Word(device=device) as word:
        word.serve(path)
        # Even for the largest value of a word: the device compares signed differences.
        word.wait_on(stream.cuda_stream, cuda.Word.LARGEST)
        done = torch.cuda.Event()
        done.record(stream)
        time.sleep(0.1)
        early = done.query()
        with peer(gpu_peers.set_word, path, None) as pipe:
            hear(pipe)
        assert word.wait(1, timeout_s=5) == cuda.Word.POISON
        stream.synchronize()
        assert not early


def test_a_word_without_a_device_is_refused_on_a_stream(device: int) -> None:
    with cuda.Word() as word, pytest.raises(ValueError, match="device="):
        word.write_on(0, 1)
    with pytest.raises((CudaError, ValueError)):
        cuda.Word(device=99)
