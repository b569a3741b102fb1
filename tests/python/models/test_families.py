"""Numbers of every family: those of the plain model, and of its own processor."""

from __future__ import annotations

import sys
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from family_models import (
    CPU,
    Model,
    adapt,
    build_double,
    grids_of,
    let_train,
    model,
    packed,
    pixels_of,
    samples_of,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from flowtrain.config.lora import Adapter, LoraConfig
from flowtrain.cost.layers import PARTS
from flowtrain.models import ModelError
from flowtrain.models.send import send

__all__ = ["model"]


def test_packed_documents_on_both_sides_equal_each_document_on_the_plain_model(
    model: Model,
) -> None:
    family, samples = model.family, samples_of(model)
    plain = model.plain()
    total = sum(sample.plain_loss(plain) for sample in samples)
    total.backward()  # type: ignore[union-attr]
    encoder, backbone = model.build("encoder"), model.build("backbone")
    rows = family.encode(encoder, pixels_of(samples), grids_of(samples))
    planned = sum(
        family.image_rows(grid, tokens)
        for sample in samples
        for grid, tokens in zip(sample.grids, sample.num_tokens, strict=True)
    )
    assert rows.shape == (planned, family.row_width)
    leaf = rows.detach().requires_grad_()
    out = family.loss(backbone, packed(family, samples), leaf)
    out.loss_sum.backward()
    rows.backward(leaf.grad)
    # Norms and rotary positions round to float32 on the way.
    torch.testing.assert_close(out.loss_sum, total, rtol=1e-7, atol=0)
    ours = {**dict(encoder.named_parameters()), **dict(backbone.named_parameters())}
    theirs = dict(plain.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in theirs.items():
        if parameter.grad is None:
            # Otherwise weight decay would change what a plain loop leaves alone.
            assert not ours[name].requires_grad, name
            continue
        # The bias of keys shifts all scores of a query alike: its gradient is rounding alone.
        torch.testing.assert_close(
            ours[name].grad, parameter.grad, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_adapters_have_the_gradients_of_those_of_peft_in_the_plain_model(model: Model) -> None:
    family, samples, ranks = copy(model.family), samples_of(model), {"backbone": 4, "encoder": 2}
    plain = model.plain()
    adapt(plain, family, ranks)
    let_train(plain, family, set(PARTS), ranks)
    theirs = dict(plain.named_parameters())
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in theirs.items():
            if "lora_" in name:  # B is zero at first, and then A has no gradient.
                parameter.copy_(torch.randn(parameter.shape) / 10)
    total = sum(sample.plain_loss(plain) for sample in samples)
    total.backward()  # type: ignore[union-attr]
    family.lora = LoraConfig(**{part: Adapter(rank=rank) for part, rank in ranks.items()})
    encoder, backbone = (build_double(family, side) for side in ("encoder", "backbone"))
    ours = {**dict(encoder.named_parameters()), **dict(backbone.named_parameters())}
    with torch.no_grad():
        for name, parameter in ours.items():
            if "lora_" in name:
                parameter.copy_(theirs[name])
    rows = family.encode(encoder, pixels_of(samples), grids_of(samples))
    leaf = rows.detach().requires_grad_()
    out = family.loss(backbone, packed(family, samples), leaf)
    out.loss_sum.backward()
    rows.backward(leaf.grad)
    torch.testing.assert_close(out.loss_sum, total, rtol=1e-7, atol=0)
    adapted = {name for name in theirs if "lora_" in name and theirs[name].grad is not None}
    assert {family.part_of(name) for name in adapted} == set(ranks)
    assert adapted == {name for name in ours if "lora_" in name}
    for name, parameter in ours.items():
        # Layers of the tower that nothing reads have adapters in the plain model alone.
        wanted = theirs[name].grad if name in theirs else None
        assert parameter.requires_grad == (wanted is not None), name
        if wanted is not None:
            torch.testing.assert_close(
                parameter.grad,
                wanted,
                rtol=1e-5,
                atol=1e-6,
                msg=lambda m, n=name: f"{n}: {m}",
            )


def test_a_leak_between_documents_changes_the_loss(model: Model) -> None:
    family, samples = model.family, samples_of(model)
    full = model.build("full")
    batch = packed(family, samples)
    one = replace(batch, doc_lengths=[sum(batch.doc_lengths)])
    with torch.no_grad():
        rows = family.encode(full, pixels_of(samples), grids_of(samples))
        apart, together = (float(family.loss(full, b, rows).loss_sum) for b in (batch, one))
    assert abs(together / apart - 1) > 1e-4


def test_the_host_does_not_wait_for_a_device_within_the_passes_of_a_row(model: Model) -> None:
    family, samples = model.family, samples_of(model)
    backbone = model.build("backbone")
    with torch.no_grad():
        rows = family.encode(model.build("encoder"), pixels_of(samples), grids_of(samples))
    waits: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            # A shape or a value that depends on the content of a tensor.
            if operator._schema.name in ("aten::nonzero", "aten::_local_scalar_dense"):
                waits.append(operator._schema.name)
            return operator(*args, **(kwargs or {}))

    batch = packed(family, samples)
    with Watch():
        family.loss(backbone, batch, rows.requires_grad_()).loss_sum.backward()
    # Experts take the tokens that are chosen for them, whose number the device knows.
    assert waits == [] or hasattr(family.config.get_text_config(), "num_experts")


def test_the_host_does_not_wait_for_a_device_within_the_passes_of_images(model: Model) -> None:
    family, samples = model.family, samples_of(model)
    meta = torch.device("meta")
    encoder = family.build("encoder", weights=None, seed=1, dtype=torch.bfloat16, device=meta)
    waits: list[tuple[str, str]] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = function(*args, **(kwargs or {}))
            # A copy from the host, but for those of `send`.
            if isinstance(out, torch.Tensor) and out.device == meta:
                from_host = args and isinstance(args[0], torch.Tensor) and args[0].device == CPU
                caller = sys._getframe(1).f_globals["__name__"]
                if (from_host or function is torch.tensor) and caller != send.__module__:
                    waits.append((function.__name__, caller))
            return out

    pixels = pixels_of(samples).to(meta)
    # This device refuses operators whose result depends on the content of a tensor.
    with Watch():
        family.encode(encoder, pixels, grids_of(samples)).sum().backward()
    assert waits == []


def test_positions_of_a_row_of_another_shape_are_refused(model: Model) -> None:
    batch = packed(model.family, [model.sample("text alone")])
    wrong = replace(batch, position_ids=batch.position_ids[:-1])
    with pytest.raises(ModelError, match="otherwise documents would see each other"):
        model.family.loss(model.build("backbone"), wrong, None)


def test_every_parameter_belongs_to_the_part_that_holds_it(model: Model) -> None:
    sides = {side: dict(model.build(side).named_parameters()) for side in ("encoder", "backbone")}
    parts = set()
    for side, parameters in sides.items():
        for name in parameters:
            assert model.family.side_of(name) == side, name
            parts.add(model.family.part_of(name))
    assert parts == {"encoder", "projector", "backbone"}
