"""`optim.offload`: whether a run has states that it can keep in host memory."""

from __future__ import annotations

from flowtrain.config.checks import require
from flowtrain.config.layout import MODULES
from flowtrain.config.schema import RunConfig
from flowtrain.train.launch.signals import say


def check_offload(config: RunConfig) -> None:
    """Refuse `optim.offload` of which no module has any use; say which ones it leaves out.

    Args:
        config: A run with its layout.

    Raises:
        ConfigError: No module that trains is sharded.
    """
    if not config.optim.offload:
        return
    trained = [module for module in MODULES if module in config.trained_modules]
    left_out = [module for module in trained if not config.offloads(module)]
    fields = ", ".join(f"parallel.{module}.sharding=replicated" for module in left_out)
    require(
        left_out != trained,
        f"optim.offload=true with {fields}: only ranks that divide their states keep them in host "
        "memory, as each would step all of them there otherwise; set sharding to optimizer or "
        "full, also on one rank, or optim.offload to false",
    )
    if left_out:
        say(f"optim.offload leaves the states of the {left_out[0]} on its device, with {fields}")
    if config.model.device == "cpu":
        say("optim.offload changes nothing on a CPU: all states are in host memory already")
