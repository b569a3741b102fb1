"""Errors raised by `flowtrain.data`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowtrain.config.schema import DataConfig, RunConfig


class DataError(ValueError):
    """A sample cannot be used. The message names file, line and cause."""


def no_sample_fits(config: RunConfig, data: DataConfig, samples: int) -> DataError:
    """Error for a run that would drop every sample of a data set."""
    return DataError(
        f"{data.name}: none of {samples} samples fits into "
        f"train.microbatch_tokens={config.train.microbatch_tokens} with "
        f"data.oversize={config.data.oversize}; raise train.microbatch_tokens"
    )
