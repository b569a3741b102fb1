"""Pages by which streams hand over slabs: order, waits, and the death of a producer."""

from __future__ import annotations

import time
from pathlib import Path

import gpu_peers
import pytest
import torch
from gpu_peers import hear, peer

from flowtrain_core import Pool, Producer, cuda

pytestmark = [pytest.mark.gpu, pytest.mark.limit(120)]

SLAB = 4 << 20


def wait_until_written(page: cuda.StreamPage, slab: int, generation: int) -> None:
    end = time.monotonic() + 30
    while page.written(slab, generation) == "pending":
        assert time.monotonic() < end, f"generation {generation} was not written within 30 s"


def test_a_host_that_sees_a_generation_sees_earlier_writes_of_the_stream(
    pool: Pool, device: int
) -> None:
    cuda.register_host(pool, device=device)
    host = torch.from_dlpack(Producer(pool).lease((SLAB,), "uint8", timeout_s=5))
    rounds = torch.arange(64, dtype=torch.uint8, device="cuda").repeat_interleave(SLAB)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with cuda.StreamPage(1, device=device) as page:
        for value in range(64):
            source = rounds[value * SLAB :].data_ptr()
            cuda.copy_to_host(
                host.data_ptr(), source, SLAB, device=device, stream=stream.cuda_stream
            )
            page.publish_on(stream.cuda_stream, 0, value, lane=1)
            wait_until_written(page, 0, value)
            assert int(host[-1]) == value
            assert torch.all(host == value)
            assert page.finish_read(0, value)
        stream.synchronize()


def test_a_stream_waits_for_a_stream_of_another_process(device: int, tmp_path: Path) -> None:
    path = str(tmp_path / "page.sock")
    stream = torch.cuda.Stream()
    with cuda.StreamPage(1, device=device) as page:
        page.serve(path)
        with peer(gpu_peers.publish_late, path, 0.5) as pipe:
            assert hear(pipe) == "submitted"
            page.wait_written(stream.cuda_stream, 0, 0)
            page.release_on(stream.cuda_stream, 0, 0, lane=2)
            print({"enqueued before the write ran": page.written(0, 0) == "pending"})
            pipe.send("finish")
            stream.synchronize()
            assert page.written(0, 0) == "reached"
            assert page.confirm(0, 0) and page.may_write(0, 1)


def test_a_killed_producer_leaves_no_stream_waiting(device: int, tmp_path: Path) -> None:
    path = str(tmp_path / "page.sock")
    stream = torch.cuda.Stream()
    with cuda.StreamPage(1, device=device) as page:
        page.serve(path)
        with peer(gpu_peers.publish_late, path, 20.0) as pipe:
            assert hear(pipe) == "submitted"
            page.wait_written(stream.cuda_stream, 0, 0)
            page.release_on(stream.cuda_stream, 0, 0, lane=2)
            done = torch.cuda.Event()
            done.record(stream)
            early = done.query()
            pipe.send("die")
        # The process has ended.
        assert page.settle(1)
        stream.synchronize()
        assert not early
        assert not page.confirm(0, 0) and page.may_write(0, 1)


def test_a_page_without_a_device_is_refused_on_a_stream(device: int) -> None:
    with cuda.StreamPage(1) as page, pytest.raises(ValueError, match="device="):
        page.publish_on(0, 0, 0, lane=1)
    with pytest.raises(ValueError, match="device=99"):
        cuda.StreamPage(1, device=99)
