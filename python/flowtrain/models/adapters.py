"""LoRA adapters of PEFT at the linear layers of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from flowtrain.config.checks import ConfigError
from flowtrain.config.lora import LoraConfig
from flowtrain.config.model import Part
from flowtrain.extras import install_command

ADAPTER = "default"
"""Name of the adapter within PEFT's modules; files of adapters leave it out."""


def require_peft() -> None:
    """Check that PEFT is installed.

    Raises:
        ConfigError: It is not.
    """
    try:
        import peft  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"section lora: {error.name} is not installed; run: {install_command('lora')}"
        ) from error


def add_adapters(
    model: Any, lora: LoraConfig, part_of: Callable[[str], Part], *, seed: int
) -> None:
    """Put adapters beside linear layers of a full model, which alone train in their parts.

    A layer that the loss does not depend on has none. Parameters of a layer with an adapter get
    other names: `base_layer` stands in front of their own. Adapters have the dtype of their layer.
    Their initial values are those of PEFT: B is zero, and A is uniform, drawn from the seed and the
    name of the layer, so that neither the layout nor another adapter changes them.

    Args:
        model: The model of transformers, with the names of its parameters. On the device `meta`
            nothing is drawn; see `draw_adapters`.
        lora: The adapters.
        part_of: The part that a parameter belongs to, by its name.
        seed: `train.seed`.

    Raises:
        ConfigError: A part has no such layer.

    Source: Hu et al. (2021), LoRA, arXiv 2106.09685.
    """
    from peft import inject_adapter_in_model

    config = _peft_config(model, lora, part_of)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    # Without values, as PEFT would draw them from the numbers that torch draws next.
    inject_adapter_in_model(config, model, ADAPTER, low_cpu_mem_usage=True)
    for _, layer in adapted_layers(model):
        _allocate(layer)
    draw_adapters(model, seed=seed)
    for name, parameter in model.named_parameters():
        if part_of(name) not in lora.adapters:
            parameter.requires_grad_(name in trained)


def draw_adapters(model: torch.nn.Module, *, seed: int) -> None:
    """Give adapters their initial values, or a rank its shards of them.

    Args:
        model: A model with adapters, or a side of the cut.
        seed: `train.seed`.
    """
    for name, layer in adapted_layers(model):
        a, b = (matrices[ADAPTER].weight for matrices in (layer.lora_A, layer.lora_B))
        if a.is_meta:
            continue
        # On the CPU, whatever the device of the model: others draw other numbers.
        values = torch.empty(a.shape)
        generator = torch.Generator().manual_seed(seed ^ crc32(name.encode()))
        torch.nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)
        _fill(a, values.to(a.device, a.dtype))
        _fill(b, torch.zeros(b.shape, dtype=b.dtype, device=b.device))


def adapted_layers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers of a model that have an adapter (`LoraLayer` of PEFT), with their names."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):  # PEFT need not be installed if there are none.
            yield name, module


def adapter_names(model: torch.nn.Module) -> set[str]:
    """Names of the parameters of all adapters."""
    return {
        f"{name}.{inner}"
        for name, layer in adapted_layers(model)
        for inner, _ in layer.named_parameters()
        if not inner.startswith("base_layer.")
    }


def without_adapter(name: str) -> str:
    """Name of a parameter in a model without adapters."""
    return name.replace(".base_layer.", ".")


def modules_to_save(model: torch.nn.Module) -> list[str]:
    """The modules that train themselves beside adapters, which PEFT saves as a whole.

    Args:
        model: The full model; its parameters that train require gradients.

    Raises:
        ConfigError: A module trains in part.
    """
    of_adapters = adapter_names(model)
    found: list[str] = []
    for name, trained in model.named_parameters():
        if not trained.requires_grad or name in of_adapters:
            continue
        module = name.rpartition(".")[0]
        if any(f"{module}.".startswith(f"{other}.") for other in found):
            continue
        for other, parameter in model.get_submodule(module).named_parameters():
            if not parameter.requires_grad:
                raise ConfigError(
                    f"section lora: {name} trains and {module}.{other} does not, and beside "
                    f"adapters PEFT saves only whole modules, here {module}; let its part have "
                    "adapters too, or name the part in model.freeze"
                )
        found.append(module)
    return found


def merge(model: torch.nn.Module) -> None:
    """Add what the adapters learned to the weights of their layers, and remove the adapters."""
    for name, layer in list(adapted_layers(model)):
        layer.merge()
        model.set_submodule(name, layer.get_base_layer())


def _peft_config(model: Any, lora: LoraConfig, part_of: Callable[[str], Part]) -> Any:
    """The adapters of all parts as one configuration of PEFT."""
    from peft import LoraConfig as PeftConfig

    layers: dict[str, Part] = {}
    head = model.get_output_embeddings()
    for part, adapter in lora.adapters.items():
        own = [
            name
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear)
            and part_of(f"{name}.weight") == part
            and module is not head
            and module.weight.requires_grad
        ]
        for target in adapter.targets:
            if not any(_ends(name, target) for name in own):
                known = sorted({name.rpartition(".")[2] for name in own})
                raise ConfigError(
                    f"lora.{part}.targets: {target!r} is no linear layer of {part} that an adapter "
                    f"may stand beside; choose from {', '.join(known)}, or longer ends of their "
                    "names"
                )
        found = [
            name
            for name in own
            if not adapter.targets or any(_ends(name, target) for target in adapter.targets)
        ]
        if not found:
            raise ConfigError(
                f"lora.{part}.rank={adapter.rank}: {part} has no linear layer; leave "
                f"lora.{part} out"
            )
        layers |= dict.fromkeys(found, part)
    first = next(iter(lora.adapters.values()))
    # Patterns are regular expressions; dots of a name match themselves.
    others = {n: a for n, part in layers.items() if (a := lora.adapters[part]) is not first}
    return PeftConfig(
        r=first.rank,
        lora_alpha=first.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(layers),
        rank_pattern={n: a.rank for n, a in others.items() if a.rank != first.rank},
        alpha_pattern={n: a.alpha for n, a in others.items() if a.alpha != first.alpha},
    )


def _ends(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")


def _allocate(layer: Any) -> None:
    """Make the matrices of an adapter on the device of its layer, in the dtype of the layer."""
    base = layer.get_base_layer().weight
    for matrices in (layer.lora_A, layer.lora_B):
        shape = matrices[ADAPTER].weight.shape
        matrices[ADAPTER].weight = torch.nn.Parameter(
            torch.empty(shape, dtype=base.dtype, device=base.device)
        )


@torch.no_grad()
def _fill(parameter: torch.Tensor, values: torch.Tensor) -> None:
    """Set a parameter, or this rank's shard of it, to values that all ranks have."""
    if isinstance(parameter, DTensor):
        # Without a source each rank takes its part of its own values.
        values = distribute_tensor(
            values, parameter.device_mesh, parameter.placements, src_data_rank=None
        ).to_local()
        parameter = parameter.to_local()
    parameter.copy_(values)
