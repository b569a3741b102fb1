"""What of a model trains in a run."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from flowtrain.config.checks import ConfigError
from flowtrain.config.optim import ParameterGroup
from flowtrain.config.schema import Part, RunConfig
from flowtrain.models.adapters import modules_to_save
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.family import Family
from flowtrain.train.state.optimizer import check_groups, group_of


def _all(_name: str) -> bool:
    return True


def freeze(
    module: torch.nn.Module,
    config: RunConfig,
    *,
    part_of: Callable[[str], Part],
    holds: Callable[[str], bool] = _all,
) -> None:
    """Let the parameters that do not train in a run require no gradient.

    Args:
        module: The model or one side of it. Parameters that the loss does not depend on, and
            weights that an adapter trains in place of, require none already.
        config: The run.
        part_of: The part that a parameter belongs to, by its name.
        holds: Whether to look at a parameter, by its name.
    """
    for name, parameter in module.named_parameters():
        if holds(name) and not _trains(name, part_of(name), config):
            parameter.requires_grad_(False)


def freeze_and_cast(
    module: torch.nn.Module,
    config: RunConfig,
    *,
    part_of: Callable[[str], Part],
    holds: Callable[[str], bool] = _all,
) -> None:
    """Freeze what does not train, as `freeze` does, and keep it in the dtype of the passes alone.

    Args:
        module: As for `freeze`. Before it is read from a folder, it has the weights in no other
            dtype at any time.
        config: As for `freeze`.
        part_of: As for `freeze`.
        holds: As for `freeze`.
    """
    freeze(module, config, part_of=part_of, holds=holds)
    for name, parameter in module.named_parameters():
        if holds(name) and not parameter.requires_grad:
            parameter.data = parameter.data.to(DTYPES[config.model.pass_dtype])


def frozen_names(module: torch.nn.Module) -> set[str]:
    """Names of the parameters that do not train, with all names of a shared one."""
    named = module.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if not parameter.requires_grad}


def check_trained(config: RunConfig, family: Family) -> None:
    """Check `optim.groups` and `lora` against the parameters of the model.

    Raises:
        ConfigError: A group has no parameter, an adapter has no layer, nothing would train that has
            to, or what trains beside adapters cannot be saved with them.
    """
    if not config.optim.groups and not config.lora.adapters:
        return
    names = _names(config, family)
    check_groups(config.optim, names)
    sides = {family.side_of(n) for n in names if _trains(n, family.part_of(n), config)}
    if not sides:
        raise ConfigError("optim.groups: nothing would train; remove a group with train: false")
    if config.flow.mode != "frozen" and "encoder" not in sides:
        raise ConfigError(
            f"optim.groups: neither encoder nor projector would train with flow.mode="
            f"{config.flow.mode}; set flow.mode to frozen"
        )
    if config.lora.adapters:
        model = family.meta_model()
        freeze(model, config, part_of=family.part_of)
        modules_to_save(model)


def trained_groups(config: RunConfig, family: Family) -> list[ParameterGroup]:
    """The groups of `optim.groups` with a parameter that trains."""
    if not config.optim.groups:
        return []
    trained = {
        group_of(name, config.optim)
        for name in _names(config, family)
        if _trains(name, family.part_of(name), config)
    }
    return [group for group in config.optim.groups if group in trained]


def _names(config: RunConfig, family: Family) -> Collection[str]:
    """Names of the parameters, without weights that an adapter trains in place of."""
    return family.trainable_sizes() if config.lora.adapters else family.parameter_sizes()


def _trains(name: str, part: Part, config: RunConfig) -> bool:
    group = group_of(name, config.optim)
    return part in config.trained_parts and (group is None or group.train)
