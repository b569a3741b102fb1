"""FlowTrain's core: a pool of shared memory whose items move between processes without a copy.

    pool = Pool.create("demo", bytes=1 << 26)        # in one process
    lease = Producer(pool).lease((576, 1024), "float32", timeout_s=5.0)
    numpy.asarray(lease)[:] = embedding              # or torch.from_dlpack(lease).copy_(...)
    lease.publish(key=7)

    pool = Pool.open("demo")                         # in another
    item = Consumer(pool).get(timeout_s=5.0)
    embedding = torch.from_dlpack(item)              # the same physical pages
    del embedding
    item.release()
"""

from flowtrain_core._load import load_extension
from flowtrain_core._version import __version__

_C = load_extension()

Consumer = _C.Consumer
FlowTrainError = _C.FlowTrainError
Item = _C.Item
LaneInfo = _C.LaneInfo
Lease = _C.Lease
Pool = _C.Pool
PoolClosed = _C.PoolClosed
PoolCorrupt = _C.PoolCorrupt
PoolEntry = _C.PoolEntry
PoolExists = _C.PoolExists
PoolNotFound = _C.PoolNotFound
PoolSpace = _C.PoolSpace
PoolTimeout = _C.PoolTimeout
Producer = _C.Producer
StaleAddress = _C.StaleAddress
SystemError = _C.SystemError
ViewsAlive = _C.ViewsAlive
list_pools = _C.list_pools

if _C.__version__ != __version__:
    raise ImportError(
        f"flowtrain_core: the extension is version {_C.__version__} and the sources are "
        f"{__version__}; rebuild it with pip install -e ., or remove one of the two"
    )

__all__ = [
    "Consumer",
    "FlowTrainError",
    "Item",
    "LaneInfo",
    "Lease",
    "Pool",
    "PoolClosed",
    "PoolCorrupt",
    "PoolEntry",
    "PoolExists",
    "PoolNotFound",
    "PoolSpace",
    "PoolTimeout",
    "Producer",
    "StaleAddress",
    "SystemError",
    "ViewsAlive",
    "__version__",
    "list_pools",
]
