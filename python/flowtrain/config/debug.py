"""Configuration of faults and delays for tests."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.config.checks import not_negative


@dataclass(frozen=True, kw_only=True, slots=True)
class DebugConfig:
    """Faults and delays for tests, off by default."""

    delay_ms: float = 0.0
    """Maximum random delay before each action of a rank."""
    fault: str | None = None
    """Function that each rank calls before it starts, as `module:function`, or as
    `module:function:RANK` for one rank only. Tests inject faults with it."""

    def __post_init__(self) -> None:
        not_negative(debug__delay_ms=self.delay_ms)
