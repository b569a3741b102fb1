"""Attention layers of transformers that call functions of FlowTrain in place of some of their own.

Only these layers change: transformers' functions, which other models call, stay as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch

from flowtrain.models.attention import NAME
from flowtrain.models.rotary import ROTATIONS


def use_own_functions(model: torch.nn.Module) -> None:
    """Let the attention layers of a model of transformers call `OWN`; others are left alone."""
    for module in model.modules():
        if (forward := with_own_functions(type(module).forward)) is not None:
            module.forward = MethodType(forward, module)


@cache
def with_own_functions(forward: Callable[..., Any]) -> Callable[..., Any] | None:
    """A forward method that calls the functions here, or None if it rotates nothing."""
    plain: Any = inspect.unwrap(forward)
    called = {name: own for name, own in OWN.items() if name in plain.__code__.co_names}
    if called.keys().isdisjoint(ROTATIONS) or not plain.__module__.startswith(
        "transformers.models."
    ):
        return None
    own = FunctionType(plain.__code__, {**plain.__globals__, **called}, closure=plain.__closure__)
    own.__defaults__, own.__kwdefaults__ = plain.__defaults__, plain.__kwdefaults__
    return own


def _attends_once(config: Any) -> bool:
    """Whether a tower of Qwen makes one call for all frames, as for flash attention.

    It would otherwise split its row at `cu_seqlens`, which torch.compile cannot trace, and copy the
    outputs into one tensor.
    """
    return bool(config._attn_implementation == NAME)


def _no_length(*_: Any, **__: Any) -> None:
    """No length of the longest frame, for which the host would wait."""


OWN: dict[str, Callable[..., Any]] = {
    **ROTATIONS,
    "is_flash_attention_requested": _attends_once,
    "get_max_seqlen": _no_length,
}
