"""Facts of a job, which its host sends to another host that asks to take part."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from flowtrain.hosts import Control, HostError, HostLeft, join
from flowtrain.hosts.connect import Streams, address_of, connect
from flowtrain.hosts.control import LongText
from flowtrain.hosts.handshake import ASKS, Session, cause_of
from flowtrain.hosts.host_gateway import Payloads
from flowtrain.train.launch.other_hosts.endpoint import Endpoint
from flowtrain.train.launch.stops import say

_KNOWS = "it knows the job now"
_RETRY_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFacts:
    """Facts from which another host makes its pool and its files of the job.

    Attributes:
        nonce: Name of the attempt.
        resume: Whether it goes on from a checkpoint.
        of_run: Whether the job is a run, and not a loop.
        elastic: Whether encoder ranks come and go.
        files: Texts of the run's files by name.
        rings: Rings of the pool.
        max_cells: Its maximum records.
        max_lanes: Its maximum processes.
        path: Payload path.
    """

    nonce: str
    resume: bool
    of_run: bool
    elastic: bool
    files: Mapping[str, str]
    rings: Sequence[str]
    max_cells: int
    max_lanes: int
    path: Payloads

    async def tell(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
    ) -> None:
        """Answer a host that asks."""
        control = Control(
            reader, writer, session, on_message=lambda _: None, on_stall=lambda _: None
        )
        text = json.dumps(asdict(self))
        try:
            await control.run(partial(control.send_text, ASKS, text))
        except HostLeft as left:
            if left.reason != _KNOWS:
                raise


async def ask(to: Endpoint) -> tuple[str, JobFacts]:
    """Name of the other host, and the facts of its job, once that host answers.

    Raises:
        HostError: It refuses this one, or closes the connection.
    """
    (reader, writer), session = await _reached(to)
    told: asyncio.Future[JobFacts] = asyncio.get_running_loop().create_future()
    text = LongText(ASKS)

    def take(message: dict[str, Any]) -> None:
        if (whole := text.take(message)) is not None and not told.done():
            told.set_result(JobFacts(**json.loads(whole)))

    control = Control(reader, writer, session, on_message=take, on_stall=lambda _: None)
    runs = asyncio.ensure_future(control.run())
    either: set[asyncio.Future[Any]] = {told, runs}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    control.close(_KNOWS)
    await runs
    return session.peer.host, told.result()


async def _reached(to: Endpoint) -> tuple[Streams, Session]:
    """A connection to the other host, once that answers."""
    told_wait = False
    while True:
        try:
            streams = await connect(to.host, to.port)
            session = await join(*streams, to.token, to.identity("", purpose=ASKS))
            return streams, session
        except HostError as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            why = cause_of(error.__cause__)
        except OSError as error:
            why = error.strerror or str(error)
        if not told_wait:
            say(f"waits for {address_of(to.host, to.port)} ({why})")
        told_wait = True
        await asyncio.sleep(_RETRY_S)
