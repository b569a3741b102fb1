"""Plans in the words of other programs that train."""

from flowtrain.plan.export.interface import Exported, Target
from flowtrain.plan.export.megatron import TARGET as _MEGATRON
from flowtrain.plan.export.text import exported_script, exported_text, exported_tree
from flowtrain.plan.export.torchtitan import TARGET as _TORCHTITAN

TARGETS: dict[str, Target] = {target.name: target for target in (_MEGATRON, _TORCHTITAN)}
"""Programs by the value of `--export`."""

__all__ = ["TARGETS", "Exported", "Target", "exported_script", "exported_text", "exported_tree"]
