"""Configuration: frozen dataclasses, read from YAML with dotted overrides."""

from flowtrain.config.load import dump, from_dict, load
from flowtrain.config.schema import ConfigError, RunConfig

__all__ = ["ConfigError", "RunConfig", "dump", "from_dict", "load"]
