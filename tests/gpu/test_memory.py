"""Registered host memory, copies, and device memory that two processes share."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import gpu_peers
import pytest
import torch

from flowtrain_core import CudaError, Pool, Producer, cuda

pytestmark = [pytest.mark.gpu, pytest.mark.limit(300)]

SLAB = 4 << 20


def lease_bytes(pool: Pool, segment: int | None = None) -> tuple[Any, torch.Tensor]:
    lease = Producer(pool, segment=segment).lease((SLAB,), "uint8", timeout_s=5)
    return lease, torch.from_dlpack(lease)


def test_properties_equal_those_of_torch(device: int) -> None:
    (facts, *_) = cuda.devices()
    print(facts, cuda.driver_version())
    assert facts.name == torch.cuda.get_device_name(device)
    assert facts.capability == torch.cuda.get_device_capability(device)
    assert facts.memory_bytes >= torch.cuda.get_device_properties(device).total_memory
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    assert facts.uuid.removeprefix("GPU-").removeprefix("MIG-") == uuid.removeprefix("GPU-")


def test_one_registration_covers_segments_mapped_later(pool: Pool, device: int) -> None:
    first, before = lease_bytes(pool)
    assert not before.is_pinned()
    assert cuda.register_host(pool, device=device) == SLAB
    assert cuda.register_host(pool, device=device) == SLAB
    assert before.is_pinned()
    later = pool.add_segment(classes=[(SLAB, 1)])
    _, after = lease_bytes(pool, later)
    assert after.is_pinned()
    pool.close()
    # A view may still be the end of a copy, so its memory stays registered.
    assert before.is_pinned()
    del first


def test_a_second_registration_of_memory_is_an_error(device: int) -> None:
    memory = mmap.mmap(-1, 1 << 20)
    view = torch.frombuffer(memory, dtype=torch.uint8)
    with (
        cuda.HostRegistration(view.data_ptr(), 1 << 20, device=device) as registration,
        pytest.raises(CudaError, match="already registered in this process"),
    ):
        assert registration.device_address != 0
        cuda.HostRegistration(view.data_ptr(), 1 << 20, device=device)
    # close ends the registration, so the memory can be registered again.
    cuda.HostRegistration(view.data_ptr(), 1 << 20, device=device).close()
    assert not view.is_pinned()


@pytest.mark.parametrize("registered", [True, False])
def test_bytes_survive_a_trip_to_the_device(registered: bool, pool: Pool, device: int) -> None:
    if registered:
        cuda.register_host(pool, device=device)
    _, host = lease_bytes(pool)
    host.copy_(torch.randint(0, 256, (SLAB,), dtype=torch.uint8))
    sent = host.clone()
    there, also = torch.zeros(2, SLAB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    given = {"nbytes": SLAB, "device": device, "stream": stream.cuda_stream}

    def copies() -> None:
        # In a thread without a context, in which plain driver calls would fail.
        cuda.copy_to_device(there.data_ptr(), host.data_ptr(), **given)
        cuda.copy_on_device(also.data_ptr(), there.data_ptr(), **given)
        cuda.synchronize(device=device, stream=stream.cuda_stream)
        host.zero_()
        cuda.copy_to_host(host.data_ptr(), also.data_ptr(), **given)
        cuda.synchronize(device=device, stream=stream.cuda_stream)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(copies).result(60)
    assert torch.equal(host, sent)
    assert torch.equal(there.cpu(), sent)


@pytest.mark.parametrize("tier", ["vmm", "ipc"])
def test_an_item_in_device_memory_is_shared_with_another_process(
    tier: Literal["vmm", "ipc"], pool: Pool, device: int
) -> None:
    segment = pool.add_segment(classes=[(SLAB, 1)], tier=tier, device=device)
    found = gpu_peers.exchange(pool, segment, SLAB)
    print(found)
    assert found["wrong_bytes_there"] == found["wrong_bytes_here"] == 0


def test_a_slab_on_a_device_is_a_tensor_there(pool: Pool, device: int) -> None:
    segment = pool.add_segment(classes=[(SLAB, 1)], tier="device", device=device)
    lease, view = lease_bytes(pool, segment)
    assert view.device == torch.device("cuda", device)
    with pytest.raises(BufferError, match=f"memory of CUDA device {device}"):
        memoryview(lease)
    pool.close()
    view.fill_(7)  # A view keeps its memory.
    assert int(view.sum()) == 7 * SLAB


def test_invalid_sizes_and_devices_are_refused(pool: Pool, device: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        pool.add_segment(bytes=1 << 39, tier="vmm", device=device)
    with pytest.raises(ValueError, match="device=99"):
        pool.add_segment(bytes=1 << 20, tier="vmm", device=99)


def test_memory_is_freed_when_a_segment_closes(device: int) -> None:
    torch.zeros(1, device="cuda")
    before, _ = torch.cuda.mem_get_info(device)
    with Pool.create(f"gpu-freed-{os.getpid()}", bytes=1 << 30, tier="vmm", device=device):
        during, _ = torch.cuda.mem_get_info(device)
    after, _ = torch.cuda.mem_get_info(device)
    print({"before": before, "during": during, "after": after})
    assert before - during >= 1 << 30
    assert after - during >= 1 << 30
