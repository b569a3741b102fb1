"""CUDA devices: capabilities, copies, and registered memory.

Importing this module neither opens the driver nor touches a device. A stream is passed as an
integer, torch's `stream.cuda_stream` or CuPy's `stream.ptr`; 0 is the default stream.

    if not cuda.available():
        print(cuda.why_not())
    cuda.register_host(pool, device=0)      # copies to and from the pool are now asynchronous
    pool.add_segment(bytes=1 << 30, tier="device")  # torch.from_dlpack(lease) is on the device
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowtrain_core import _C

if TYPE_CHECKING:
    from flowtrain_core._C import CudaDevice as Device
    from flowtrain_core._C import CudaHostRegistration as HostRegistration
    from flowtrain_core._C import (
        cuda_copy_on_device as copy_on_device,
    )
    from flowtrain_core._C import (
        cuda_copy_to_device as copy_to_device,
    )
    from flowtrain_core._C import (
        cuda_copy_to_host as copy_to_host,
    )
    from flowtrain_core._C import (
        cuda_register_host as register_host,
    )
    from flowtrain_core._C import (
        cuda_synchronize as synchronize,
    )
    from flowtrain_core._ops import (
        cuda_gather_rows as gather_rows,
    )
    from flowtrain_core._ops import (
        cuda_rotate as rotate,
    )
    from flowtrain_core._ops import (
        cuda_scatter_rows as scatter_rows,
    )

_IN_EXTENSION = {
    "Device": "CudaDevice",
    "HostRegistration": "CudaHostRegistration",
    "copy_on_device": "cuda_copy_on_device",
    "copy_to_device": "cuda_copy_to_device",
    "copy_to_host": "cuda_copy_to_host",
    "register_host": "cuda_register_host",
    "synchronize": "cuda_synchronize",
}
_IN_OPS = {
    "gather_rows": "cuda_gather_rows",
    "rotate": "cuda_rotate",
    "scatter_rows": "cuda_scatter_rows",
}

__all__ = [
    "Device",
    "HostRegistration",
    "available",
    "copy_on_device",
    "copy_to_device",
    "copy_to_host",
    "devices",
    "driver_version",
    "gather_rows",
    "register_host",
    "rotate",
    "scatter_rows",
    "synchronize",
    "why_not",
]


def why_not() -> str:
    """Why this process cannot use a device, and what to do; empty if it can."""
    if not _C.cuda_built:
        return (
            "flowtrain_core was built without CUDA: no nvcc was found, or FLOWTRAIN_CUDA=OFF; "
            "build it with the CUDA toolkit (CUDACXX=/path/to/nvcc pip install flowtrain)"
        )
    return _C.cuda_why_not()


def available() -> bool:
    """Whether this process can use a device."""
    return not why_not()


def devices() -> list[Device]:
    """The devices visible to this process; none if `why_not` has a reason."""
    return _C.cuda_devices() if available() else []


def driver_version() -> tuple[int, int]:
    """CUDA version that the driver supports, such as (13, 0); (0, 0) without a driver."""
    version = _C.cuda_driver_version() if _C.cuda_built else 0
    return version // 1000, version % 1000 // 10


def __getattr__(name: str) -> Any:
    if name not in _IN_EXTENSION | _IN_OPS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _C.cuda_built:
        raise AttributeError(f"{__name__}.{name}: {why_not()}")
    if name in _IN_EXTENSION:
        return getattr(_C, _IN_EXTENSION[name])
    from flowtrain_core import _ops

    return getattr(_ops, _IN_OPS[name])
