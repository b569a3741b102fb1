"""What of a model trains in a run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from flowtrain.config.checks import ConfigError
from flowtrain.config.flow import Mode
from flowtrain.config.model import Part
from flowtrain.config.optim import OptimConfig, ParameterGroup
from flowtrain.models.adapters import modules_to_save
from flowtrain.models.family import Family
from flowtrain.train.state.optimizer import check_groups, group_of


def _all(_name: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Trained:
    """What of a model trains in a run.

    Attributes:
        parts: The parts that train.
        optim: Section `optim`; a group with `train: false` does not train either.
    """

    parts: Collection[Part]
    optim: OptimConfig

    def freeze(
        self,
        module: torch.nn.Module,
        *,
        part_of: Callable[[str], Part],
        holds: Callable[[str], bool] = _all,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Let the parameters that do not train require no gradient.

        Args:
            module: The model or one side of it. Parameters that the loss does not depend on, and
                weights that an adapter trains in place of, require none already.
            part_of: The part that a parameter belongs to, by its name.
            holds: Whether to look at a parameter, by its name.
            dtype: Dtype of the passes, which what does not train is kept in alone: with this called
                before a model is read from a folder, it has such weights in no other at any time.
                None leaves dtypes as they are.
        """
        for name, parameter in module.named_parameters():
            if holds(name) and not self._trains(name, part_of(name)):
                parameter.requires_grad_(False)
            if holds(name) and not parameter.requires_grad and dtype is not None:
                parameter.data = parameter.data.to(dtype)

    def check(self, family: Family, *, mode: Mode) -> None:
        """Check the groups, and the adapters of a model, against its parameters.

        Raises:
            ConfigError: A group has no parameter, an adapter has no layer, nothing would train
                that `flow.mode` lets train, or what trains beside adapters cannot be saved with
                them.
        """
        if not self.optim.groups and not family.lora.adapters:
            return
        names = _names(family)
        check_groups(self.optim, names)
        sides = {family.side_of(n) for n in names if self._trains(n, family.part_of(n))}
        if not sides:
            raise ConfigError("optim.groups: nothing would train; remove a group with train: false")
        if mode != "frozen" and "encoder" not in sides:
            raise ConfigError(
                f"optim.groups: neither encoder nor projector would train with flow.mode={mode}; "
                "set flow.mode to frozen"
            )
        if family.lora.adapters:
            model = family.meta_model()
            self.freeze(model, part_of=family.part_of)
            modules_to_save(model)

    def groups(self, family: Family) -> list[ParameterGroup]:
        """The groups of `optim.groups` with a parameter that trains."""
        if not self.optim.groups:
            return []
        trained = {
            group_of(name, self.optim)
            for name in _names(family)
            if self._trains(name, family.part_of(name))
        }
        return [group for group in self.optim.groups if group in trained]

    def _trains(self, name: str, part: Part) -> bool:
        group = group_of(name, self.optim)
        return part in self.parts and (group is None or group.train)


def frozen_names(module: torch.nn.Module) -> set[str]:
    """Names of the parameters that do not train, with all names of a shared one."""
    named = module.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if not parameter.requires_grad}


def _names(family: Family) -> Collection[str]:
    """Names of the parameters, without weights that an adapter trains in place of."""
    return family.trainable_sizes() if family.lora.adapters else family.parameter_sizes()
