"""Errors raised by `flowtrain.data`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowtrain_core import FlowTrainError

if TYPE_CHECKING:
    from flowtrain.config.schema import DataConfig, RunConfig


class DataError(FlowTrainError, ValueError):
    """A sample cannot be used. The message names file, line and cause."""


def no_sample_fits(config: RunConfig, data: DataConfig, samples: int) -> DataError:
    """Error for a run that would drop every sample of a data set."""
    return DataError(
        f"{data.name}: none of {samples} samples fits into "
        f"train.microbatch_tokens={config.train.microbatch_tokens} with "
        f"data.oversize={config.data.oversize}; raise train.microbatch_tokens"
    )


def shortened(value: Any) -> str:
    """`repr` of a value, of at most 63 characters, as a value may hold whole files."""
    # `repr` of megabytes would take as many.
    shown = repr(value[:61] if isinstance(value, str | bytes | bytearray) else value)
    return f"{shown[:60]}..." if len(shown) > 60 else shown
