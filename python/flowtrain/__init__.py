"""FlowTrain: vision-language-model training as a flow between encoder and backbone ranks."""

from flowtrain_core import __version__

__all__ = ["__version__"]
