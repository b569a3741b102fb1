"""The encoder's optimizer, as that of the loop is set, and the loop's without the encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flowtrain.config.checks import ConfigError

_NAMES: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.SGD: "sgd",
    torch.optim.AdamW: "adamw",
}
_TAKEN = {
    "sgd": ("lr", "momentum"),
    "adamw": ("lr", "betas", "eps"),
}
# Entries of a group that are no options.
_MEMBERS = ("params", "param_names")
# Options that change what a step computes, and that the encoder's optimizer does not have.
_OTHERS = {"dampening": 0, "nesterov": False, "amsgrad": False, "maximize": False}


class EncoderGroups:
    """The groups of a loop's optimizer that have the parameters of the encoder.

    They may differ in their weight decay, as those of the Hugging Face Trainer do.

    Args:
        optimizer: The optimizer, which has not stepped.
        parameters: Parameters of encoder and projector that train, by name.

    Raises:
        ConfigError: It has not all of them, its groups differ in more, or the encoder cannot have
            such an optimizer.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
    ) -> None:
        kind = type(optimizer)
        if kind not in _NAMES:
            raise ConfigError(
                f"optimizer: the encoder has no {kind.__name__}; use torch.optim.SGD or "
                "torch.optim.AdamW"
            )
        self._name = _NAMES[kind]
        self._decay = _decays(optimizer, parameters)
        self._ndim = {name: parameter.ndim for name, parameter in parameters.items()}
        members = {id(parameter) for parameter in parameters.values()}
        # Their numbers, since an optimizer that loads a state has other groups.
        self._numbers = [
            number
            for number, group in enumerate(optimizer.param_groups)
            if any(id(p) in members for p in group["params"])
        ]
        self._options = _options(optimizer, self._numbers, self._name)
        self._kept = self._kept_options(optimizer)

    def section(self) -> dict[str, Any]:
        """Section `optim` of a run whose encoder has these options."""
        matrices = Counter(own for name, own in self._decay.items() if self._ndim[name] >= 2)
        vectors = Counter(own for name, own in self._decay.items() if self._ndim[name] < 2)
        [decay] = [own for own, _ in matrices.most_common(1)] or [0.0]
        decays_vectors = not vectors or vectors.most_common(1)[0][0] == decay
        others = [
            {"match": name, "weight_decay": own}
            for name, own in self._decay.items()
            if own != (decay if decays_vectors or self._ndim[name] >= 2 else 0.0)
        ]
        return {
            "name": self._name,
            **self._options,
            "weight_decay": decay,
            "decay_vectors": decays_vectors,
            "groups": others,
        }

    def rate(self, optimizer: torch.optim.Optimizer) -> float:
        """The learning rate of these groups.

        Raises:
            ConfigError: They have several, or other options than at first.
        """
        for before, now in zip(self._kept, self._kept_options(optimizer), strict=True):
            for option, value in before.items():
                if now[option] != value:
                    raise ConfigError(
                        f"optimizer: {option}={now[option]} in place of {value}: the encoder's "
                        "optimizer follows the learning rate alone; keep it as it was, such as by "
                        "OneCycleLR(..., cycle_momentum=False)"
                    )
        rates = {float(optimizer.param_groups[number]["lr"]) for number in self._numbers}
        if len(rates) > 1:
            raise ConfigError(
                f"optimizer: its groups with parameters of the encoder have learning rates "
                f"{', '.join(f'{rate:g}' for rate in sorted(rates))}; give them one"
            )
        return rates.pop()

    def _kept_options(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        """Options of these groups that must stay as they are."""
        names = {*_TAKEN[self._name], "weight_decay"} - {"lr"}
        groups = optimizer.param_groups
        return [
            {name: _plain(groups[number][name]) for name in sorted(names)}
            for number in self._numbers
        ]


def check_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Refuse an optimizer of parameters that are not the model's: no checkpoint could have them.

    Raises:
        ConfigError: It has such a parameter, or a state already.
    """
    if optimizer.state:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} has a state already; connect before its first "
            "step, with one that has none until then, such as torch.optim.AdamW"
        )
    own = {id(parameter) for parameter in model.parameters()}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if others := [parameter for parameter in given if id(parameter) not in own]:
        raise ConfigError(
            f"optimizer: {len(others)} of its {len(given)} parameters are not the model's, the "
            f"first of shape {list(others[0].shape)}; make it of the parameters of this model, as "
            "they are now, and give others an optimizer of their own"
        )


def check_state(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose state no checkpoint could have, after its first step.

    Raises:
        ConfigError: It keeps something else than tensors.
    """
    for state in optimizer.state.values():
        for name, value in state.items():
            if not isinstance(value, torch.Tensor):
                raise ConfigError(
                    f"optimizer: {type(optimizer).__name__} keeps {name} as "
                    f"{type(value).__name__}, and checkpoints have tensors alone; use one of "
                    "torch.optim, such as AdamW"
                )


def group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Options of all groups, such as their learning rates, without tensors."""
    return [
        {name: _plain(value) for name, value in group.items() if name not in _MEMBERS}
        for group in optimizer.param_groups
    ]


def set_group_options(
    optimizer: torch.optim.Optimizer, options: Sequence[Mapping[str, Any]]
) -> None:
    """Set what `group_options` has returned.

    Raises:
        ConfigError: The optimizer has another number of groups.
    """
    groups = optimizer.param_groups
    if len(options) != len(groups):
        raise ConfigError(
            f"optimizer: it has {len(groups)} groups, and that of the state had {len(options)}; "
            "make it as before"
        )
    for group, given in zip(groups, options, strict=True):
        for name, value in given.items():
            if isinstance(group.get(name), torch.Tensor):
                group[name].fill_(value)
            else:
                # From JSON, a tuple is a list.
                group[name] = tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def take_out(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    """Take parameters out of an optimizer.

    A group that has no others stays, so that schedulers go on to set its learning rate.
    """
    taken = {id(parameter) for parameter in parameters.values()}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in taken]


def _decays(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, float]:
    """Weight decay of each parameter, by name."""
    of = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    if missing := [name for name, parameter in parameters.items() if id(parameter) not in of]:
        raise ConfigError(
            f"optimizer: it has {len(parameters) - len(missing)} of the {len(parameters)} "
            f"parameters of encoder and projector that train, and not {missing[0]}; give it all"
        )
    return {name: float(of[id(parameter)]) for name, parameter in parameters.items()}


def _options(optimizer: torch.optim.Optimizer, numbers: list[int], name: str) -> dict[str, Any]:
    """Options of the groups with these numbers, without their weight decay."""
    groups = [optimizer.param_groups[number] for number in numbers]
    kind = type(optimizer).__name__
    for option, value in _OTHERS.items():
        for group in groups:
            if group.get(option, value) != value:
                raise ConfigError(
                    f"optimizer: {kind} with {option}={group[option]}, which the encoder's does "
                    f"not have; leave {option} out"
                )
    for option in _TAKEN[name]:
        values = {group[option] for group in groups}
        if len(values) > 1:
            raise ConfigError(
                f"optimizer: its groups with parameters of the encoder have {option}="
                f"{', '.join(map(str, sorted(values)))}; give them one, or put all parameters of "
                "encoder and projector into one group"
            )
    options = {option: groups[0][option] for option in _TAKEN[name]}
    # The rate of each step is the group's. That of a warm-up begins with 0, which no run has.
    options["lr"] = options["lr"] or groups[0].get("initial_lr") or 1.0
    if "betas" in options:
        options["betas"] = list(options["betas"])
    return options
