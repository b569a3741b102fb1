"""Hooks that tell a clock which layer of a model computes, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from flowtrain.cost.layers import Layer
from flowtrain.cost.profiled import ATTENTION
from flowtrain.train.profile.clock import Clock


class Probe:
    """Labels the time of a pass with the kinds of the layers that it computes.

    In the forward pass a layer's time is that between the hooks in front of it and behind it. In
    the backward pass it begins when the gradient of its output is complete. Attention within a
    layer has a label of its own. All other time belongs to the first layer of the module, as the
    tower's embedding stands for all that is in front of its blocks; and the output head has all
    time behind it in the forward pass, which is that of the loss.

    Args:
        model: The full model of a family.
        layers: Its layers; their names are paths in the model.
        kinds: Kind of each layer that is computed.
        clock: Told of the labels.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layers: Sequence[Layer],
        kinds: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._marked: dict[int, torch.Tensor] = {}
        self._rest = ""
        self.gives_gradients = False
        head = layers[-1].name
        for layer in layers:
            if layer.name not in kinds:
                continue
            module = model.get_submodule(layer.name)
            label = kinds[layer.name]
            module.register_forward_pre_hook(
                self._before(label, starts=layer.takes is not None), with_kwargs=True
            )
            module.register_forward_hook(self._behind(label, ends=layer.name == head))

    @contextmanager
    def passes(self, rest: str) -> Iterator[None]:
        """Within the block, passes are measured; time of no layer belongs to the label `rest`."""
        self._rest = rest
        names = [name for name in ALL_ATTENTION_FUNCTIONS if "paged" not in name]
        plain = {name: ALL_ATTENTION_FUNCTIONS[name] for name in names}
        for name, function in plain.items():
            ALL_ATTENTION_FUNCTIONS[name] = self._attention(function)
        try:
            yield
        finally:
            for name, function in plain.items():
                ALL_ATTENTION_FUNCTIONS[name] = function
            self._marked = {}

    def _before(self, label: str, *, starts: bool) -> Any:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs.get("hidden_states")
            if isinstance(hidden, torch.Tensor) and hidden.is_floating_point():
                if starts and self.gives_gradients and not hidden.requires_grad:
                    hidden.requires_grad_()
                # An output of another layer is marked already: its backward begins there.
                self._mark(hidden, self._rest)
            self._clock.switch(label)

        return hook

    def _behind(self, label: str, *, ends: bool) -> Any:
        def hook(_: Any, __: tuple[Any, ...], out: Any) -> None:
            self._mark(out[0] if isinstance(out, tuple) else out, label)
            if not ends:
                self._clock.switch(self._rest)

        return hook

    def _mark(self, tensor: torch.Tensor, label: str) -> None:
        """Once the gradient of a tensor is complete, time belongs to a label."""
        if tensor.requires_grad and id(tensor) not in self._marked:
            # Kept, so that no other tensor gets its number.
            self._marked[id(tensor)] = tensor
            tensor.register_hook(lambda _: self._clock.switch(label))

    def _attention(self, function: Any) -> Any:
        def timed(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            clock, layer = self._clock, self._clock.label
            for tensor in (query, key, value):
                self._mark(tensor, layer)
            clock.switch(layer + ATTENTION)
            out = function(module, query, key, value, *args, **kwargs)
            clock.switch(layer)
            self._mark(out[0], layer + ATTENTION)
            return out

        return timed
