"""The job's store: small JSON values that all ranks of a job share."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch.distributed import (
    DistError,
    DistNetworkError,
    DistStoreError,
    PrefixStore,
    Store,
    TCPStore,
)

from flowtrain.train.control.activity import Activity
from flowtrain.train.control.deadline import UNLIMITED_S
from flowtrain.train.control.ending import JobFailed
from flowtrain.train.control.job import Job
from flowtrain_core import FlowTrainError, list_pools

_POLL_S = 0.1
# No key has this value, which is no JSON.
_NO_VALUE = "?"
# Share of the time waited so far after which a wait that polls looks again, and its maximum.
_POLL_SHARE = 1 / 16
_LONGEST_POLL_S = 0.02
# Of tries to connect to the store, each lasts longer than the one before.
_PROBE_S, _FIRST_TRY_S = 2.0, 5.0
_RETRY_S = 0.2
_P = ParamSpec("_P")
_T = TypeVar("_T")


class StoreTimeout(FlowTrainError, TimeoutError):
    """A peer did not write an awaited key in time."""


class StoreLost(FlowTrainError, DistNetworkError):
    """The job's store is lost, with its process or the link to it, or cannot be reached."""

    def __init__(self, address: str, cause: Exception) -> None:
        why = (str(cause).splitlines() or [type(cause).__name__])[0]
        super().__init__(
            "the process that hosts the job has ended, or the link to its host is lost (store at "
            f"{address}: {why})"
        )


def _telling_loss(
    call: Callable[Concatenate[JobStore, _P], _T],
) -> Callable[Concatenate[JobStore, _P], _T]:
    """Let a call raise StoreLost in place of an error that names a socket."""

    @wraps(call)
    def called(store: JobStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return call(store, *args, **kwargs)
        except StoreLost:
            raise
        except DistNetworkError as error:
            raise StoreLost(store.address, error) from error

    return called


class JobStore:
    """Keys with one writer each, read by any rank. Keys of a step are deleted after the step.

    Each object has its own connection, which a blocking read holds: a thread needs one of its own.

    Args:
        address: `host:port` of the store.
        nonce: Name of the attempt; an attempt does not see the keys of another.
        timeout_s: Timeout to connect.
        activity: Told of waits for a key. Without it, no heartbeat ends the waits.
        polls: Whether waits look for their keys again and again, so that Ctrl-C and the failure of
            the job end them; otherwise only the end of the process does.

    Raises:
        JobFailed: There is no such store, and no process of the job on this host any more.
        StoreLost: The store cannot be reached within the timeout. Each method raises it, too.
    """

    def __init__(
        self,
        address: str,
        nonce: str,
        *,
        timeout_s: float,
        activity: Activity | None = None,
        polls: bool = False,
    ) -> None:
        self.address = address
        self.nonce = nonce
        self._activity = activity or Activity()
        self._polls = polls
        self._keys: Store = PrefixStore(nonce, _connected(Job(address, nonce), timeout_s))
        self._keys.set_timeout(timedelta(seconds=UNLIMITED_S))

    def clone(self, timeout_s: float = 30.0) -> JobStore:
        """The same store with another connection, for another thread."""
        return JobStore(self.address, self.nonce, timeout_s=timeout_s)

    def process_group_store(self, world: str) -> Store:
        """Store for the process group of a world."""
        return PrefixStore(f"world/{world}", self._keys)

    def put(self, key: str, value: Any) -> None:
        self.put_text(key, json.dumps(value, separators=(",", ":")))

    @_telling_loss
    def put_text(self, key: str, text: str) -> None:
        """Set a key to a value that is JSON text already."""
        self._keys.set(key, text)

    @_telling_loss
    def put_bytes(self, key: str, value: bytes) -> None:
        """Set a key to bytes, which `take_bytes` returns."""
        self._keys.set(key, value)  # type: ignore[arg-type]

    def take_bytes(self, key: str, *, writer: str) -> bytes:
        """Wait for the bytes of a key that only this rank reads, and delete the key.

        Args:
            key: The key.
            writer: Rank that writes it, used in messages.
        """
        value = self.get_text(key, writer=writer)
        self.delete(key)
        return value

    @_telling_loss
    def has(self, key: str) -> bool:
        return bool(self._keys.check([key]))

    def get(self, key: str, *, writer: str, timeout_s: float = UNLIMITED_S) -> Any:
        """Wait for a key and return its value.

        Args:
            key: The key.
            writer: Rank or world that writes it, used in messages.
            timeout_s: Timeout of the wait.

        Raises:
            StoreTimeout: The key was not written in time.
            JobFailed: This object polls, and the job has failed, before or meanwhile.
        """
        return _parsed(key, self.get_text(key, writer=writer, timeout_s=timeout_s))

    @_telling_loss
    def get_text(self, key: str, *, writer: str, timeout_s: float = UNLIMITED_S) -> bytes:
        """As `get`, but returns the JSON text."""
        if timeout_s < UNLIMITED_S:
            self.wait([key], writer=writer, timeout_s=timeout_s)
        with self._activity.waiting(f"{writer} to write {key}"):
            self._poll([key])
            return bytes(self._keys.get(key))  # Waits, too.

    @_telling_loss
    def wait(self, keys: Sequence[str], *, writer: str, timeout_s: float = UNLIMITED_S) -> None:
        """Wait until every key has a value.

        Raises:
            StoreTimeout: Some of the keys were not written in time.
            JobFailed: This object polls, and the job has failed, before or meanwhile.
        """
        try:
            with self._activity.waiting(f"{writer} to write {', '.join(keys)}"):
                self._poll(keys)
                self._keys.wait(list(keys), timedelta(seconds=timeout_s))
        except DistStoreError as error:
            missing = [key for key in keys if not self.has(key)]
            raise StoreTimeout(
                f"{writer} did not write {', '.join(missing)} within {timeout_s:g} s"
            ) from error

    def wait_deleted(self, key: str, *, readers: str) -> None:
        """Wait until the last reader has released a key that exists.

        Args:
            key: The key.
            readers: Ranks that release it, used in messages.
        """
        with self._activity.waiting(f"{readers} to release {key}"):
            while self.has(key):
                self._activity.check()
                time.sleep(_POLL_S)

    @_telling_loss
    def read(self, keys: Sequence[str]) -> list[Any]:
        """Current values of keys; None for a key without a value."""
        if self._keys.check(list(keys)):
            values = self._keys.multi_get(list(keys))
            return [_parsed(key, value) for key, value in zip(keys, values, strict=True)]
        return [_parsed(key, self._keys.get(key)) if self.has(key) else None for key in keys]

    @_telling_loss
    def delete(self, key: str) -> None:
        self._keys.delete_key(key)

    @_telling_loss
    def peek(self, key: str) -> str | None:
        """Current value of a key, or None without waiting for one."""
        # A comparison with a key without a value would end the waits of others for that key.
        if not self.has(key):
            return None
        found = self._keys.compare_set(key, _NO_VALUE, _NO_VALUE).decode()
        return None if found == _NO_VALUE else found

    @_telling_loss
    def swap(self, key: str, expected: str | None, value: str) -> str | None:
        """Set a key if it has the expected value, in one operation of the store.

        A process that is killed at any time has set the key or has not.

        Args:
            key: The key.
            expected: Value that is replaced; None for a key without a value.
            value: The new value, not empty.

        Returns:
            The value after the call: the new one, unless the key had another one than expected;
            None if it had none.
        """
        found = self._keys.compare_set(key, expected or "", value).decode()
        # The store returns the expected value for a key without one.
        return None if found == expected else found

    @_telling_loss
    def count(self, key: str, more: int = 0) -> int:
        """Add to a counter, which is 0 at first, and return it."""
        return self._keys.add(key, more)

    @_telling_loss
    def claim(self, name: str) -> bool:
        """Claim a name that only one process may have; True for the first call."""
        return self._keys.add(f"claimed/{name}", 1) == 1

    @_telling_loss
    def release(self, name: str, keys: Sequence[str], *, processes: int) -> bool:
        """Release keys that this rank no longer reads; the last of `processes` calls deletes them.

        Args:
            name: Name of the group of keys, the same in all calls.
            keys: The keys.
            processes: Number of processes that release them.

        Returns:
            Whether this was the last call.
        """
        counter = f"released/{name}"
        if self._keys.add(counter, 1) != processes:
            return False
        for key in (*keys, counter):
            self._keys.delete_key(key)
        return True

    def _poll(self, keys: Sequence[str]) -> None:
        """Wait until all keys have values, if this object polls."""
        start = time.monotonic()
        while self._polls:
            self._activity.check()
            if self._keys.check(list(keys)):
                return
            time.sleep(min(_POLL_SHARE * (time.monotonic() - start), _LONGEST_POLL_S))


def _connected(job: Job, timeout_s: float) -> TCPStore:
    host, _, port = job.address.rpartition(":")
    end, try_s = time.monotonic() + timeout_s, _FIRST_TRY_S
    while True:
        try:
            # That of torch would go on to try where nobody listens any more.
            socket.create_connection((host, int(port)), _PROBE_S).close()
            limit = timedelta(seconds=min(try_s, max(end - time.monotonic(), _RETRY_S)))
            return TCPStore(host, int(port), is_master=False, timeout=limit)
        except (OSError, DistError) as error:
            if not any(pool.alive and pool.name == job.pool for pool in list_pools()):
                raise JobFailed(
                    "the job has ended: none of its processes is left on this host, and its store "
                    f"at {job.address} takes no connection"
                ) from error
            if time.monotonic() > end:
                raise StoreLost(job.address, error) from error
        try_s *= 2
        time.sleep(_RETRY_S)


def _parsed(key: str, text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RuntimeError(f"the job's store has no JSON for {key}, but {text[:80]!r}") from error
