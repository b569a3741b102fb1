"""Configuration: frozen dataclasses, and YAML with dotted overrides over them."""

from flowtrain.config.load import dump, from_dict, load
from flowtrain.config.schema import ConfigError, RunConfig

__all__ = ["ConfigError", "RunConfig", "dump", "from_dict", "load"]
