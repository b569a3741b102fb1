"""FlowTrain: vision-language-model training as a flow between encoder and backbone ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowtrain_core import __version__

if TYPE_CHECKING:
    from flowtrain.train.connect.entry import connect

__all__ = ["__version__", "connect"]


def __getattr__(name: str) -> Any:
    if name == "connect":  # Imports torch.
        from flowtrain.train.connect.entry import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
