"""What a program that trains can run of the plans that are searched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flowtrain.cost.communication import Mesh


def _any(mesh: Mesh, sharding: str) -> bool:
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """Rules beside the sizes of a `Space`. The defaults leave nothing out.

    Attributes:
        name: Name of the program; empty if plans are for none.
        option: Option of `flowtrain plan` that chose it.
        one_node: Whether plans have the GPUs of one node at most.
        encodes_steps: Whether an encoder on its own encodes a whole step before it runs backward.
        whole_encoders: Whether the first of several stages has all encoders and the embedding, and
            the last one what follows the decoder's blocks.
        one_level: Whether all blocks of a module are computed again, or none.
        pads_towers: Whether heads of a tower may be padded so that tensor parallelism divides them.
        copies_kv: Whether more ranks than key-value heads may have copies of these.
        allows: Whether it runs a mesh with a sharding.
    """

    name: str = ""
    option: str = ""
    one_node: bool = False
    encodes_steps: bool = False
    whole_encoders: bool = False
    one_level: bool = False
    pads_towers: bool = True
    copies_kv: bool = True
    allows: Callable[[Mesh, str], bool] = _any


ANY = Runtime()
FLOWTRAIN = Runtime(name="FlowTrain", option="--only-run", encodes_steps=True)
ONE_HOST = replace(FLOWTRAIN, one_node=True)
