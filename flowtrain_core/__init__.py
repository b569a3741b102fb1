"""FlowTrain's core: a pool of shared memory whose items move between processes without a copy.

pool = Pool.create("demo", bytes=1 << 26)        # in one process
lease = Producer(pool).lease((576, 1024), "float32", timeout_s=5.0)
numpy.asarray(lease)[:] = embedding              # or torch.from_dlpack(lease).copy_(...)
lease.publish(key=7)

pool = Pool.open("demo")                         # in another
item = Consumer(pool).get(timeout_s=5.0)
embedding = torch.from_dlpack(item)              # the same physical pages
del embedding
item.release()                                   # otherwise it is delivered again
"""

from flowtrain_core._load import load_extension
from flowtrain_core._version import __version__

load_extension()

import flowtrain_core._exit  # noqa: E402, F401  (registers)
from flowtrain_core._C import (  # noqa: E402
    Consumer,
    CudaError,
    FlowTrainError,
    Gateway,
    Item,
    LaneInfo,
    Lease,
    MemoryUnreachable,
    Pool,
    PoolClosed,
    PoolCorrupt,
    PoolEntry,
    PoolExists,
    PoolFull,
    PoolNotFound,
    PoolSpace,
    PoolTimeout,
    Producer,
    StaleAddress,
    SystemCallError,
    UcxError,
    ViewRefused,
    ViewsAlive,
    flight_record,
    inspect,
    leave_pools,
    list_pools,
)

__all__ = [
    "Consumer",
    "CudaError",
    "FlowTrainError",
    "Gateway",
    "Item",
    "LaneInfo",
    "Lease",
    "MemoryUnreachable",
    "Pool",
    "PoolClosed",
    "PoolCorrupt",
    "PoolEntry",
    "PoolExists",
    "PoolFull",
    "PoolNotFound",
    "PoolSpace",
    "PoolTimeout",
    "Producer",
    "StaleAddress",
    "SystemCallError",
    "UcxError",
    "ViewRefused",
    "ViewsAlive",
    "__version__",
    "flight_record",
    "inspect",
    "leave_pools",
    "list_pools",
]
