"""Payloads between two processes by the paths between hosts, beside bare send and receive."""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
import statistics
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from flowtrain import progress
from flowtrain.bench import ucx_copy
from flowtrain.bench.conditions import conditions
from flowtrain.bench.isolated import call_async
from flowtrain.bench.listener import listening
from flowtrain.bench.memory import check_sizes
from flowtrain.bench.peer import Endpoint, Peer, connected, plain
from flowtrain.bench.ucx_copy import UcxCopy
from flowtrain.hosts.connect import address_of
from flowtrain.hosts.ucx import copies_in_packages
from flowtrain.train.launch.stops import say

SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
ROUNDS = 15
_MIB = 1 << 20
# Payloads under way, and their bytes at most.
_WINDOW, _WINDOW_BYTES = 8, 64 << 20
_MIN_WINDOW = 2
_LOOPBACK = "127.0.0.1"

Path = Literal["tcp", "ucx"]


def listen(at: Endpoint, ucx: str, command: str) -> None:
    """Receive for other hosts, one after the other, until a signal ends this process.

    Args:
        at: Where.
        ucx: Path of `libucp` of this host; by default it is searched.
        command: For the other host, without the address.
    """

    async def listens() -> None:
        async with listening(at, ucx, say) as (host, port):
            where = address_of(host, port)
            progress.show(f"listens at {where}")
            say(f"listens at {where}; on the other host: {command} {where}")
            await asyncio.get_running_loop().create_future()

    asyncio.run(listens())


def run(
    path: Path,
    sizes: Sequence[int] = SIZES,
    seconds: float = 0.5,
    rounds: int = ROUNDS,
    ucx: str = "",
    to: Endpoint | None = None,
) -> Iterator[dict[str, Any]]:
    """Measure each size to a peer, in rounds that measure everything once.

    Args:
        path: Path between the processes.
        sizes: Bytes of a payload.
        seconds: Approximate time per figure and round.
        rounds: Rounds per size.
        ucx: Path of `libucp` of this host; by default it is searched.
        to: The peer; by default this process, over the loopback interface.

    Yields:
        Per size the median rates in GB/s (1e9 bytes): `place`, with up to 8 payloads under way, or
        64 MiB of them; `pair`, the same by bare send and receive; `perftest`, by `ucx_perftest -t
        ucp_am_bw -E sleep` of the same copy of UCX with the same settings, if both hosts have it;
        and `memcpy` on this host. `vs_*` is the median of the ratios within a round, and `vs_*_95`
        its 95 % interval. `latency_us` and `pair_latency_us` are from a payload to its
        acknowledgement, one at a time. Last the figures of 1 MiB and of the smallest size, and how
        often the receiver has registered memory.

    Raises:
        ValueError: A size is too large for the available memory.
        HostError: The peer cannot be reached, refuses this process, or is lost.
        RuntimeError: UCX is not found or not the same on both hosts, or a measurement failed.
    """
    # Both arrays of a copy; or a payload, and the window of the peer if that is this host, too.
    check_sizes(sizes, 1 + _MIN_WINDOW if to is None else 2)
    rows = _rows(path, sizes, seconds, rounds, ucx, to)

    async def next_row() -> dict[str, Any] | None:
        return await anext(rows, None)

    with asyncio.Runner() as runner:
        while (row := runner.run(next_row())) is not None:
            try:
                yield row
            except GeneratorExit:
                # Before the runner, which would close it and the generators it awaits all at once.
                runner.run(rows.aclose())
                raise


async def _rows(
    path: Path,
    sizes: Sequence[int],
    seconds: float,
    rounds: int,
    ucx: str,
    to: Endpoint | None,
) -> AsyncGenerator[dict[str, Any]]:
    async with AsyncExitStack() as stack:
        if to is None:
            own = Endpoint(host=_LOOPBACK, port=0, token=secrets.token_bytes())
            host, port = await stack.enter_async_context(listening(own, ucx, lambda _: None))
            to = replace(own, host=host, port=port)
        peer = await stack.enter_async_context(connected(to, say))
        there = await peer.ready()
        copies = await _same_ucx(peer, ucx) if path == "ucx" else None
        who = {"host": f"{socket.gethostname()} {peer.interface}", "peer": str(peer)}
        common: dict[str, Any] = {"bench": "pool", "path": path} | who
        last: dict[str, Any] = dict(common)
        for item_bytes in progress.over(f"payloads by {path}", sizes):
            found = _Rounds(peer, path, item_bytes, seconds, ucx, copies)
            await peer.while_there(found.measure(rounds))
            row = found.row()
            yield common | {"item_bytes": item_bytes} | row | conditions()
            last["registrations"] = found.registrations
            if item_bytes == _MIB:
                last |= {f"{key}_1MiB": row[key] for key in row if key.startswith("vs_")}
            if item_bytes == min(sizes):
                extra = row["latency_us"] - row["pair_latency_us"]
                last[f"extra_latency_us_{item_bytes}B"] = round(extra, 2)
        if copies is not None:
            last["ucx"] = copies[0].version
        yield last | {"peer_cpu": there["cpu"]} | conditions()


async def _same_ucx(peer: Peer, library: str) -> tuple[UcxCopy, UcxCopy]:
    """The copies of UCX of this host and the peer.

    Raises:
        RuntimeError: One host has none, or they differ in version or settings.
    """
    try:
        own = await peer.while_there(ucx_copy.find(peer.interface, library))
    except RuntimeError as error:
        raise RuntimeError(f"host {socket.gethostname()}: {plain(error)}") from error
    theirs = UcxCopy(**(await peer.ask("find_ucx"))["ucx"])
    if differs := own.unlike(theirs):
        raise RuntimeError(differs)
    return own, theirs


class _Rounds:
    """Figures of one size, by what is measured and round."""

    def __init__(
        self,
        peer: Peer,
        path: Path,
        item_bytes: int,
        seconds: float,
        ucx: str,
        copies: tuple[UcxCopy, UcxCopy] | None,
    ) -> None:
        self.registrations = 0
        self._peer = peer
        self._path = path
        self._item_bytes = item_bytes
        self._seconds = seconds
        self._library = {"library": ucx, "others": copies_in_packages()}
        self._perftest = copies if copies and all(each.perftest for each in copies) else None
        self._window = max(_MIN_WINDOW, min(_WINDOW, _WINDOW_BYTES // item_bytes))
        self._rates: dict[str, list[float]] = {}
        self._latencies: dict[str, list[float]] = {}

    async def measure(self, rounds: int) -> None:
        # Once before, so that the first round is as any other.
        warm_up = await self._flow(self._path, self._window, 0.01)
        self.registrations = warm_up["registrations"]
        # Rates that are compared follow each other: a machine may change its own within seconds.
        steps: list[Callable[[], Awaitable[None]]] = [
            partial(self._rate, "pair", "pair"),
            partial(self._rate, self._path, "place"),
            self._theirs,
            partial(self._latency, "pair", "pair_latency_us"),
            partial(self._latency, self._path, "latency_us"),
            self._copy,
        ]
        for turn in range(rounds):
            for step in steps if turn % 2 == 0 else reversed(steps):
                await step()

    def row(self) -> dict[str, Any]:
        """Medians, and ratios to `place`."""
        place = self._rates["place"]
        row: dict[str, Any] = {name: _short(median / 1e9) for name, median in self._medians()}
        for name, key in (("pair", "vs_pair"), ("perftest", "vs_ucx_perftest")):
            if name in self._rates:
                ratios = [
                    ours / theirs for ours, theirs in zip(place, self._rates[name], strict=True)
                ]
                row[key] = round(statistics.median(ratios), 3)
                row[f"{key}_95"] = [round(bound, 3) for bound in median_interval(ratios)]
        for name, times in self._latencies.items():
            row[name] = round(statistics.median(times), 2)
        return row

    def _medians(self) -> list[tuple[str, float]]:
        return [(name, statistics.median(rates)) for name, rates in self._rates.items()]

    async def _rate(self, path: str, name: str) -> None:
        found = await self._flow(path, self._window, self._seconds)
        self._add(self._rates, name, found["bytes_per_s"])

    async def _latency(self, path: str, name: str) -> None:
        found = await self._flow(path, 1, self._seconds / 2)
        self._add(self._latencies, name, found["round_trip_us"])

    async def _theirs(self) -> None:
        if self._perftest is not None:
            own, _ = self._perftest
            # Of a slow link, which the bare pair has measured, few messages take minutes.
            last = self._rates.get("perftest", self._rates["pair"])[-1]
            count = min(max(int(self._seconds * last / self._item_bytes), 8), 100_000)
            load = {"item_bytes": self._item_bytes, "count": count}
            port = (await self._peer.ask("perftest", **load))["port"]
            to = self._peer.address, port
            rate = await ucx_copy.perftest_bytes_per_s(own, self._item_bytes, count, to)
            await self._peer.ask("end")
            self._add(self._rates, "perftest", rate)

    async def _copy(self) -> None:
        seconds = self._seconds / 4
        rate = await call_async("memcpy_bytes_per_s", bytes=self._item_bytes, seconds=seconds)
        self._add(self._rates, "memcpy", rate)

    async def _flow(self, path: str, window: int, seconds: float) -> dict[str, Any]:
        # Payloads are open to whoever has the ticket.
        flow: dict[str, Any] = {"path": path, "ticket": secrets.token_hex(16)}
        flow |= {"bytes": self._item_bytes, "window": window}
        facts = await self._peer.ask("receive", **flow)
        to = {"address": facts["address"], "seconds": seconds}
        try:
            found = await call_async(
                "send_placements", host=self._peer.interface, **self._library, **flow, **to
            )
        except RuntimeError as error:
            if said := (await self._peer.ask("end"))["said"]:
                raise RuntimeError(f"{error}; host {self._peer}: {said}") from error
            raise
        await self._peer.ask("end")
        return dict(found) | {"registrations": facts["registrations"]}

    @staticmethod
    def _add(figures: dict[str, list[float]], name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Values between which the median of the population lies with a confidence of 95 %.

    Assumes nothing of their distribution. Fewer than six values give less confidence.

    Source: the binomial distribution of the number of values below the median.
    """
    ordered = sorted(values)
    tail, first = 0.0, 0
    for below in range((len(ordered) + 1) // 2):
        tail += math.comb(len(ordered), below) / 2 ** len(ordered)
        if tail > 0.025:
            break
        first = below
    return ordered[first], ordered[-1 - first]


def _short(value: float) -> float:
    return float(f"{value:.3g}")
