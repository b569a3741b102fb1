"""iceoryx2's Python binding: publish-subscribe in shared memory, with both sides polling."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from peers.echo import Echo


class Payload(ctypes.Structure):
    """64 bytes; with zero copy the size does not matter."""

    _fields_ = (("number", ctypes.c_uint64), ("rest", ctypes.c_uint8 * 56))


def ports(name: str, out: str, back: str) -> tuple[Any, Any, Any]:
    """A node, which must outlive its ports, a publisher and a subscriber."""
    import iceoryx2

    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)

    def service(end: str) -> Any:
        builder = node.service_builder(iceoryx2.ServiceName.new(f"{name}/{end}"))
        return builder.publish_subscribe(Payload).open_or_create()

    return (
        node,
        service(out).publisher_builder().create(),
        service(back).subscriber_builder().create(),
    )


def send(publisher: Any, number: int) -> None:
    sample = publisher.loan_uninit()
    sample.payload().contents.number = number
    sample.assume_init().send()


def receive(subscriber: Any) -> int:
    sample = subscriber.receive()
    while sample is None:
        sample = subscriber.receive()
    number: int = sample.payload().contents.number
    return number


def serve(name: str) -> None:
    _node, publisher, subscriber = ports(name, "back", "there")
    while True:
        send(publisher, receive(subscriber))


class Iceoryx(Echo):
    needs = "iceoryx2"

    def __init__(self, core: int, item_bytes: int) -> None:
        super().__init__(core, item_bytes)
        name = f"flowtrain-bench-{os.getpid()}-{id(self)}"
        self._node, self._publisher, self._subscriber = ports(name, "there", "back")
        self.start(serve, name)
        # Samples published before the other side subscribes are lost.
        end = time.monotonic() + 30
        while (sample := self._subscriber.receive()) is None:
            if time.monotonic() > end:
                raise TimeoutError("iceoryx2: the other process did not answer within 30 s")
            send(self._publisher, 0)
            time.sleep(0.05)
        del sample
        time.sleep(0.1)
        while self._subscriber.receive() is not None:
            pass

    def round_trip(self) -> None:
        send(self._publisher, 1)
        receive(self._subscriber)
