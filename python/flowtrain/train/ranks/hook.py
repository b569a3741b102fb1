"""`debug.fault`: a function that ranks call before they start, for tests."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from flowtrain.config.checks import ConfigError


def load_hook(spec: str) -> Callable[[str], None]:
    """Import the function of a hook.

    Args:
        spec: `module:function`, or `module:function:RANK` for one rank only.

    Returns:
        A function that takes the name of a rank, and calls the hook if it is for that rank.

    Raises:
        ConfigError: There is no such function.
    """
    module, _, rest = spec.partition(":")
    name, _, only = rest.partition(":")
    try:
        function: Callable[[], None] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"debug.fault={spec}: {error}; write module:function, or module:function:RANK for one "
            "rank, where Python can import the module"
        ) from error

    def call(label: str) -> None:
        if only in ("", label):
            function()

    return call
