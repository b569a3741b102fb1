"""pyzmq: a pair of sockets over ipc, with copies."""

from __future__ import annotations

import os

from peers.echo import Echo


def serve(address: str) -> None:
    import zmq

    socket = zmq.Context().socket(zmq.PAIR)
    socket.connect(address)
    while True:
        socket.send(socket.recv(), copy=True)


class ZmqIpc(Echo):
    needs = "zmq"

    def __init__(self, core: int, item_bytes: int) -> None:
        super().__init__(core, item_bytes)
        import zmq

        # An abstract address needs no file.
        address = f"ipc://@flowtrain-bench-{os.getpid()}-{id(self)}"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.bind(address)
        self._item = bytes(item_bytes)
        self.start(serve, address)
        self.round_trip()

    def round_trip(self) -> None:
        self._socket.send(self._item, copy=True)
        self._socket.recv()

    def stop(self) -> None:
        super().stop()
        self._context.destroy(linger=0)
