"""Reads the weights of a model folder into a module, of which each process may hold a shard.

A module is made on the device `meta`, sharded or not, and filled here. Files are mapped into
memory, and a process copies from them only what it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, HuggingFaceStorageReader
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.tensor import DTensor
from transformers import AutoModelForImageTextToText
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Transpose,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from flowtrain.models.adapters import adapter_names, draw_adapters, without_adapter
from flowtrain.models.errors import ModelError
from flowtrain.models.folder import check_weights, weight_files

if TYPE_CHECKING:
    from flowtrain.models.family import Family


_REPLICATED = "set parallel.encoder.sharding and parallel.backbone.sharding to replicated"


class ConversionError(ModelError):
    """Weights of a folder cannot be read in parts: only transformers can load the whole model."""


def check_stored(folder: Path, family: Family, *, in_parts: bool) -> None:
    """Check that a folder has each weight of its model, in the right shape; headers are read alone.

    Args:
        folder: The folder; `check_weights` has accepted it.
        family: Family of the model.
        in_parts: Whether a module is to be sharded, so that `load_weights` has to read it.

    Raises:
        ConversionError: As `load_weights`, if `in_parts`. Otherwise nothing is checked then, as
            transformers loads the whole model.
        ModelError: A weight is missing or has another shape.
    """
    try:
        _stored_names(folder, family.meta_model(), _reader(folder).read_metadata())
    except ConversionError:
        if in_parts:
            raise


def load_weights(
    module: torch.nn.Module,
    folder: Path,
    family: Family,
    *,
    device: torch.device,
    seed: int,
    parameters_on: torch.device | None = None,
) -> None:
    """Allocate a module, read its weights, draw its adapters, and compute its buffers.

    Each process reads for itself, without a collective.

    Args:
        module: A side that `Family.build` made on the device `meta`. Of parameters that are
            DTensors the local shards are read. Values are cast to the dtypes of the parameters.
        folder: Folder to read from.
        family: Family of the model.
        device: Device of the module.
        seed: `train.seed`, for adapters.
        parameters_on: Device of its parameters, if it is another than that of its buffers.

    Raises:
        ConversionError: The weights are in files of `torch.save`, or transformers computes some of
            them from others, for more than to exchange two dimensions.
        ModelError: A file cannot be used; see `check_weights`. A weight of the full model is
            missing or has another shape, or one that is tied to another is stored with other
            values.
    """
    check_weights(folder)
    full: Any = family.meta_model()
    tied: Mapping[str, str] = full.all_tied_weights_keys
    reader = _reader(folder)
    metadata = reader.read_metadata()
    names, turned = _stored_names(folder, full, metadata)
    _allocate(module, parameters_on or device)
    state = module.state_dict()
    adapters = adapter_names(module)
    weights = {}
    for name, value in state.items():
        if name not in tied and name not in adapters:
            plain = without_adapter(name)
            weights[names[plain]] = value.transpose(*turned[plain]) if plain in turned else value
    _read(reader, metadata, weights)
    for name, source in tied.items():
        if name in state and names[name] != names[source]:
            other = torch.empty_like(state[name])
            _read(reader, metadata, {names[name]: other})
            if not torch.equal(_local(other), _local(state[source])):
                raise ModelError(
                    f"{folder}: {names[name]} and {names[source]} differ, and config.json ties "
                    f"{name} to {source}; set tie_word_embeddings to false, or store the right one "
                    "alone"
                )
    draw_adapters(module, seed=seed)
    _compute_buffers(module)
    if parameters_on is not None:
        _move_buffers(module, device)


def load_full_model(folder: Path, *, dtype: torch.dtype, implementations: dict[str, Any]) -> Any:
    """Load a full model with transformers.

    Args:
        folder: Folder to read from.
        dtype: Dtype of the weights.
        implementations: Of attention and experts, arguments of `from_pretrained`.

    Raises:
        ModelError: A file cannot be used; see `check_weights`. A weight is missing or has another
            shape.
    """
    check_weights(folder)
    loaded: Any = AutoModelForImageTextToText.from_pretrained(
        folder,
        dtype=dtype,
        **implementations,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # They are refused below, by name.
    )
    model, found = loaded
    # transformers would draw them, differently on each rank.
    _refuse(folder, found["missing_keys"], found["mismatched_keys"], found["unexpected_keys"])
    return model


class _Files(FileSystem):
    """Lists the files that transformers reads; a folder may have others with the same weights."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = [str(path) for path in paths]

    def ls(self, path: Any) -> list[str]:
        return self._paths


def _reader(folder: Path) -> HuggingFaceStorageReader:
    paths = list(weight_files(folder))
    if paths[0].suffix != ".safetensors":
        raise ConversionError(
            f"{paths[0]}: a file of torch.save cannot be read in parts, as sharded modules need; "
            f"save the model with `save_pretrained` of transformers, or {_REPLICATED}"
        )
    reader = HuggingFaceStorageReader(str(folder))
    reader.fs = _Files(paths)
    return reader


def _stored_names(
    folder: Path, full: Any, metadata: Metadata
) -> tuple[dict[str, str], dict[str, tuple[int, int]]]:
    """Names in the files, by name in the model; a tied weight may have that of its source.

    And the two dimensions that are exchanged in the files, by name in the model of such weights.

    Args:
        folder: Folder of the files.
        full: The full model, on `meta`.
        metadata: What the files hold.

    Source: `convert_and_load_state_dict_in_model` of transformers.
    """
    adapters = adapter_names(full)
    shapes = {
        without_adapter(name): tuple(value.shape)
        for name, value in full.state_dict().items()
        if name not in adapters
    }
    transforms = get_model_conversion_mapping(full)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    converter_of = {pattern: each for each in converters for pattern in each.source_patterns}
    names: dict[str, str] = {}
    turned: dict[str, tuple[int, int]] = {}
    for stored in sorted(metadata.state_dict_metadata, key=dot_natural_key):
        prefix = full.base_model_prefix
        name, pattern = rename_source_key(stored, renamings, converters, prefix, shapes)
        if name not in shapes and stored in shapes:
            name, pattern = stored, None
        found: Any = metadata.state_dict_metadata[stored]
        if pattern is not None:
            dimensions = _exchanged(converter_of[pattern])
            if dimensions is None:
                raise ConversionError(
                    f"{folder}: transformers converts {stored} for {type(full).__name__}, which "
                    f"sharded modules cannot; {_REPLICATED}"
                )
            if name in shapes and tuple(found.size) != shapes[name]:
                turned[name] = dimensions
        names.setdefault(name, stored)
    for name, source in full.all_tied_weights_keys.items():
        for one, other in ((name, source), (source, name)):
            if one not in names and other in names:
                names[one] = names[other]
    wrong = []
    for name in sorted(shapes.keys() & names.keys()):
        found = metadata.state_dict_metadata[names[name]]
        size = list(found.size)
        for one, other in [turned[name]] if name in turned else []:
            size[one], size[other] = size[other], size[one]
        if tuple(size) != shapes[name]:
            wrong.append((name, tuple(found.size), shapes[name]))
    unknown = [names[name] for name in names.keys() - shapes.keys()]
    _refuse(folder, shapes.keys() - names.keys(), wrong, unknown)
    return names, turned


def _exchanged(converter: WeightConverter) -> tuple[int, int] | None:
    """The dimensions that a conversion exchanges if shapes differ, or None if it does else."""
    match converter.operations:
        case [Transpose(check_dims=True) as turn]:
            return turn.dim0, turn.dim1
    return None


def _refuse(
    folder: Path,
    missing: Collection[str],
    wrong: Collection[tuple[str, Iterable[int], Iterable[int]]],
    unknown: Collection[str],
) -> None:
    """Refuse weights that are missing, or that have another shape: name, stored, needed.

    Names that are unknown may be those of missing weights in another version of the model.
    """
    if missing:
        others = ""
        if unknown:
            others = f", and {len(unknown)} are unknown to it, {min(unknown)} for one"
        raise ModelError(
            f"{folder}: {len(missing)} weights of its config.json are missing, "
            f"{min(missing)} for one{others}; complete the folder, or give it as model.config to "
            "draw all weights from train.seed"
        )
    if wrong:
        name, stored, needed = min(wrong)
        raise ModelError(
            f"{folder}: {len(wrong)} weights have another shape than its config.json says, "
            f"{name} for one: {tuple(stored)} in place of {tuple(needed)}; correct "
            "config.json, or restore the model's own files"
        )


def _allocate(module: torch.nn.Module, device: torch.device) -> None:
    """Move a module from `meta`; `to_empty` alone would make two parameters of a tied one."""
    first: dict[torch.nn.Parameter, str] = {}
    tied = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        source = first.setdefault(parameter, name)
        if source != name:
            tied.append((name, source))
    module.to_empty(device=device)
    for name, source in tied:
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, module.get_parameter(source))


def _read(
    reader: HuggingFaceStorageReader, metadata: Metadata, tensors: dict[str, torch.Tensor]
) -> None:
    """Fill tensors, by name in the files; of a DTensor the local shard.

    These are the steps of `torch.distributed.checkpoint.load`, without its collectives.
    """
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(tensors, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _compute_buffers(module: Any) -> None:
    """Compute the buffers that are in no file, by the functions of transformers.

    These leave alone what is marked as initialized.
    """
    for part in module.modules():
        part._is_hf_initialized = not any(True for _ in part.buffers(recurse=False))
    for value in module.state_dict(keep_vars=True).values():
        value._is_hf_initialized = True
    module.model.initialize_weights()


def _move_buffers(module: torch.nn.Module, device: torch.device) -> None:
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.to(device))
