"""Description of an edge, returned by `Producer.explain` and `Consumer.explain`."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowtrain_core import cuda

_PROBE_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """A path that an item's bytes could take."""

    name: str
    taken: bool
    why: str
    """Why it is taken, or why not and what would change that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A segment that may hold items of this edge."""

    id: int
    owner: str
    tier: str
    """host, device or fake."""
    kind: str
    """memfd, vmm, ipc or fake."""
    device: str
    """UUID of the device; empty for memory of the host."""
    bytes: int
    in_use_bytes: int
    unused_bytes: int
    """Of the bytes in use, those of slabs beyond their leases or items."""
    mapped: bool
    """Mapped by this process; if not, it will be at its first use."""
    registered: bool
    """Registered with a device by this process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a producer, and its items in flight; `None` is no limit."""

    max_items: int | None
    max_bytes: int | None
    in_flight_items: int
    in_flight_bytes: int
    when_full: str
    spilled_items: int
    spilled_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One edge, seen from one end. `str()` makes a readable report."""

    pool: str
    ring: str
    role: str
    label: str
    lane: int
    strict: bool
    paths: tuple[Path, ...]
    """All paths, best first; exactly one is taken."""
    segments: tuple[Segment, ...]
    """A producer's tiers, in its order; otherwise all segments of the pool."""
    limits: Limits | None
    """None for a consumer."""
    bytes_per_s: float | None
    """Bytes that a producer published, over the time between its leases and publishes, in which
    items are written and perhaps computed. None before the first item."""
    expected_bytes_per_s: float | None
    """Rate of a memory copy on one core, if `measure` was set."""

    @property
    def path(self) -> Path:
        """The path that is taken."""
        return next(path for path in self.paths if path.taken)

    def __str__(self) -> str:
        lines = [
            f"{self.role}{_quoted(self.label)} (lane {self.lane}) of ring '{self.ring}', "
            f"pool '{self.pool}'{', strict' if self.strict else ''}"
        ]
        lines += [
            f"  {'takes' if path.taken else 'not'} {path.name}: {path.why}" for path in self.paths
        ]
        lines += [
            f"  segment {each.id}{_quoted(each.owner, ' of')}: {_memory(each)}, "
            f"{each.in_use_bytes} of "
            f"{each.bytes} bytes in use ({each.unused_bytes} of them beyond items), "
            f"{'' if each.mapped else 'not yet '}mapped, "
            f"{'' if each.registered else 'not '}registered"
            for each in self.segments
        ]
        if self.limits is not None:
            lines += [
                f"  in flight: {self.limits.in_flight_items} items of "
                f"{_limit(self.limits.max_items)}, {self.limits.in_flight_bytes} bytes of "
                f"{_limit(self.limits.max_bytes)}; when full: {self.limits.when_full}",
                f"  spilled: {self.limits.spilled_items} items, {self.limits.spilled_bytes} bytes",
            ]
        if self.bytes_per_s is not None:
            lines.append(f"  measured: {self.bytes_per_s / 1e9:.2f} GB/s while items were written")
        if self.expected_bytes_per_s is not None:
            lines.append(
                f"  expected: {self.expected_bytes_per_s / 1e9:.2f} GB/s, the rate of a copy"
            )
        return "\n".join(lines)


def explanation_of(facts: Mapping[str, Any], measure: bool) -> Explanation:
    """Make an explanation of the core's facts of an edge."""
    producer = "tiers" in facts
    segments = _segments(facts["segments"], facts["tiers"] if producer else ())
    return Explanation(
        pool=facts["pool"],
        ring=facts["ring"],
        role="producer" if producer else "consumer",
        label=facts["label"],
        lane=facts["lane"],
        strict=facts["strict"],
        paths=_paths(segments),
        segments=segments,
        limits=_limits(facts) if producer else None,
        bytes_per_s=_bytes_per_s(facts) if producer else None,
        expected_bytes_per_s=_copy_bytes_per_s() if measure else None,
    )


def _segments(there: Sequence[Mapping[str, Any]], tiers: Sequence[int]) -> tuple[Segment, ...]:
    by_id = {each["id"]: Segment(**each) for each in there}
    return tuple(by_id[number] for number in tiers or by_id if number in by_id)


def _paths(segments: Sequence[Segment]) -> tuple[Path, ...]:
    """All paths between two processes, best first, each with the reason for or against it.

    The path is that of items in the first segment; a producer spills into the others.
    """
    on_device = bool(segments) and segments[0].tier != "host"
    host = [each for each in segments if each.tier == "host"]
    registered = not on_device and bool(host) and all(each.registered for each in host)
    no_cuda = cuda.why_not()
    on_device_why = f"segment {segments[0].id} is in {_memory(segments[0])}" if on_device else ""
    not_registered = no_cuda or (
        "its segments are not registered with a device in this process; "
        "call flowtrain_core.cuda.register_host(pool, device=0)"
    )
    return (
        Path(
            name="device memory",
            taken=on_device,
            why=on_device_why
            or no_cuda
            or "the first segment is not in it; give add_segment(tier='device')",
        ),
        Path(
            name="registered shared memory",
            taken=registered,
            why="page-locked for a device: asynchronous copies; zero copy between processes"
            if registered
            else on_device_why or not_registered,
        ),
        Path(
            name="shared memory",
            taken=not registered and not on_device,
            why="the same pages are registered, which is better"
            if registered
            else on_device_why or "both ends read and write the same pages: zero copy",
        ),
        Path(
            name="another host",
            taken=False,
            why="a pool is on one host; a gateway moves items of its rings to others (`flowtrain "
            "host`), and says by which path",
        ),
    )


def _limits(facts: Mapping[str, Any]) -> Limits:
    return Limits(**{name: facts[name] for name in Limits.__slots__})


def _bytes_per_s(facts: Mapping[str, Any]) -> float | None:
    seconds = facts["timed_ns"] / 1e9
    return facts["timed_bytes"] / seconds if seconds > 0 else None


@functools.cache
def _copy_bytes_per_s() -> float:
    """Best rate of three copies of warm memory."""
    source, target = memoryview(bytearray(_PROBE_BYTES)), memoryview(bytearray(_PROBE_BYTES))
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - start)
    return _PROBE_BYTES / best


def _quoted(label: str, before: str = "") -> str:
    """A label in a sentence; nothing for a handle without one."""
    return f"{before} '{label}'" if label else ""


def _memory(segment: Segment) -> str:
    """Where a segment is, such as `host` or `device (vmm, 5a3f...)`."""
    if segment.tier == "host":
        return segment.tier
    return f"{segment.tier} ({segment.kind}, {segment.device})"


def _limit(value: int | None) -> str:
    return "any" if value is None else str(value)
