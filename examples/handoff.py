"""Hands an array from one process to another without a copy: `python examples/handoff.py`."""

import subprocess
import sys

import numpy

from flowtrain_core import Consumer, Pool, Producer


def produce() -> None:
    """Creates the pool, fills a slab in place, and waits for the reader to finish."""
    with Pool.create("handoff", bytes=64 << 20) as pool:
        reader = subprocess.Popen([sys.executable, __file__, "consume"])
        lease = Producer(pool).lease((576, 1024), "float32", timeout_s=5.0)
        numpy.asarray(lease)[:] = numpy.arange(1024)
        lease.publish(key=7)
        sys.exit(reader.wait(timeout=60))


def consume() -> None:
    """Opens the pool by name and reads the array in place."""
    pool = Pool.open("handoff", timeout_s=5.0)
    item = Consumer(pool).get(timeout_s=5.0)
    try:
        import torch

        rows = torch.from_dlpack(item)
    except ModuleNotFoundError:
        rows = numpy.asarray(item)
    print(f"key {item.key}: {type(rows).__module__} {item.dtype} {item.shape}, mean {rows.mean()}")
    del rows
    item.release()


if __name__ == "__main__":
    consume() if sys.argv[1:] == ["consume"] else produce()
