"""The model of a loop, from which the parts in front of the cut are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from flowtrain.config.checks import ConfigError
from flowtrain.config.flow import Mode
from flowtrain.config.model import Part
from flowtrain.models.family import Family
from flowtrain.models.huggingface import HuggingFaceFamily
from flowtrain.models.registry import family_for

_PARTS: tuple[Part, ...] = ("encoder", "projector", "backbone")


class LoopModel:
    """A whole Hugging Face model, before and after its tower is dropped.

    Args:
        model: The model.
        mode: `strict` or `frozen`.
        folder: Folder from which it was loaded; None for what the model says.

    Attributes:
        rank: Rank of this process in the loop: in the default process group, if there is one.
        size: Number of ranks of the loop.
        model: The model; with adapters of PEFT, the one that has them.
        has_adapters: Whether it has.
        is_divided: Whether the ranks divide its weights, by FSDP2.
        folder: That folder.
        family: Family of the model.
        frozen: Parts that do not train.

    Raises:
        ConfigError: The model cannot be connected.
        ModelError: Its folder has no family.
    """

    def __init__(self, model: Any, mode: Mode, folder: Path | str | None) -> None:
        if mode not in ("strict", "frozen"):
            raise ConfigError(f"mode={mode}: give strict or frozen")
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1
        if isinstance(model, DistributedDataParallel):
            raise ConfigError(
                "connect: DDP has the tower's parameters already; connect the model itself, and "
                "wrap it within the block"
            )
        if hasattr(model, "_orig_mod"):
            raise ConfigError(
                "connect: torch.compile has wrapped the model and renamed its parameters; connect "
                "the model itself, and compile its layers"
            )
        self.has_adapters = hasattr(model, "get_base_model")
        if self.has_adapters:
            model = model.get_base_model()
        self.model = model
        self.folder = Path(folder or getattr(model, "name_or_path", "") or "").absolute()
        if not (self.folder / "config.json").is_file():
            raise ConfigError(
                f"connect: model.name_or_path={getattr(model, 'name_or_path', '')!r} is no local "
                "folder, from which encoder ranks load the tower; save the model with its "
                "processor, and give folder=..."
            )
        self.family: Family = family_for(self.folder)
        name = type(model).__name__
        if not isinstance(self.family, HuggingFaceFamily):
            raise ConfigError(f"connect: {name} has no inputs for encoded images")
        if not all(hasattr(model.model, module) for module in self.family.image_modules):
            raise ConfigError(
                f"connect: {name} has no tower; load the model again, since an earlier connect has "
                "dropped it, and give connect the model itself, not a wrapper"
            )
        self.is_divided = isinstance(model, FSDPModule)
        for module in self.family.image_modules if self.is_divided else ():
            if not _is_own_group(getattr(model.model, module)):
                raise ConfigError(
                    f"connect: fully_shard has divided model.{module} together with the language "
                    f"model; {_way_out(getattr(model.model, module), module)}"
                )
        trained = {part: self._trained(part) for part in _PARTS}
        self.frozen = tuple(part for part, trains in trained.items() if not any(trains))
        front: set[Part] = {"encoder", "projector"}
        for part in sorted(front - set(self.frozen)):
            if not all(trained[part]):
                raise ConfigError(
                    f"connect: {sum(trained[part])} of {len(trained[part])} parameters of the "
                    f"{part} train; let all of them train, or none, and give adapters to the "
                    "language model alone (target_modules or exclude_modules of PEFT)"
                )
        wanted = front if mode == "frozen" else set()
        if front & set(self.frozen) != wanted:
            if self.has_adapters and mode != "frozen":
                raise ConfigError(
                    f"mode={mode}: the model has adapters, and its {', '.join(self.frozen)} is "
                    "frozen; set mode='frozen'"
                )
            raise ConfigError(
                f"mode={mode}: of the model, {', '.join(self.frozen) or 'no part'} does not train; "
                "with strict encoder and projector must train, and with frozen neither: set "
                "requires_grad_ of the model's vision modules"
            )

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def reduce_on(self) -> torch.device:
        """Device of tensors in the collectives of the loop."""
        nccl = self.size > 1 and "nccl" in dist.get_backend()
        return self.device if nccl else torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        dtypes = {parameter.dtype for parameter in self.model.parameters()}
        if len(dtypes) > 1:
            raise ConfigError(
                f"connect: the model has weights in {', '.join(sorted(map(str, dtypes)))}; give "
                "all of them one dtype"
            )
        return dtypes.pop()

    def in_front(self) -> dict[str, torch.nn.Parameter]:
        """Parameters in front of the cut, by name."""
        return {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if self.family.side_of(name) == "encoder"
        }

    def check_weights(self) -> None:
        """Refuse a tower that is not the one that encoder ranks load.

        Raises:
            ConfigError: A weight differs from that in the folder.
        """
        loaded = self.family.build(
            "encoder", weights=self.folder, seed=0, dtype=self.dtype, device=torch.device("cpu")
        )
        own = dict(self.model.named_parameters())
        for name, value in loaded.named_parameters():
            given = own[name].detach()
            given = given.full_tensor() if isinstance(given, DTensor) else given
            if not torch.equal(given.cpu(), value.detach()):
                raise ConfigError(
                    f"connect: {name} of the model is another than in {self.folder}, from which "
                    "encoder ranks load it; save the model there first"
                )

    def drop_tower(self) -> None:
        """Delete the modules in front of the cut."""
        assert isinstance(self.family, HuggingFaceFamily)
        for module in self.family.image_modules:
            delattr(self.model.model, module)

    def _trained(self, part: Part) -> list[bool]:
        """Whether each parameter of a part trains."""
        named = self.model.named_parameters()
        return [p.requires_grad for name, p in named if self.family.part_of(name) == part]


def _is_own_group(part: Any) -> bool:
    """Whether FSDP2 gathers no parameter of a module together with those around it."""
    if isinstance(part, torch.nn.Parameter):
        return not isinstance(part, DTensor)
    return isinstance(part, FSDPModule) or not any(True for _ in part.parameters())


def _way_out(part: Any, name: str) -> str:
    if isinstance(part, torch.nn.Parameter):
        return f"call it for the model with ignored_params={{model.model.{name}}}"
    return f"call it for model.{name} too, before it is called for the model"
