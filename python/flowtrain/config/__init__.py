"""Configuration: frozen dataclasses, read from YAML with dotted overrides."""

from flowtrain.config.checks import ConfigError
from flowtrain.config.load import dump, from_dict, given_fields, load
from flowtrain.config.schema import RunConfig

__all__ = ["ConfigError", "RunConfig", "dump", "from_dict", "given_fields", "load"]
