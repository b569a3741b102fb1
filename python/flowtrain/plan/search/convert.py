"""Makes plans of priced candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flowtrain.cost.flops import ModuleFlops, train_flops
from flowtrain.cost.layers import ForwardFlops, Layer
from flowtrain.plan.result import Layout, ModulePlan, Plan, Seconds, StageLayout
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.coupled import Priced
from flowtrain.plan.space import GpuPool

_SIZES = ("tp", "cp", "pp", "ep", "dp")


def plan_of(priced: Priced, pools: Sequence[GpuPool]) -> Plan:
    """The plan with its times and its memory by kind.

    Args:
        priced: The plan.
        pools: All GPUs that it was planned for.
    """
    peak = sum(pool.gpus * pool.flops_per_s for pool in pools)
    work = priced.context.work
    modules = _modules(priced)
    flops = _flops(priced)
    bottleneck = max(modules, key=lambda module: _time_s(module, priced))
    return Plan(
        mode=priced.mode,
        modules=modules,
        microbatches=priced.pipeline.num_microbatches,
        microbatch_tokens=round(priced.pipeline.row.most_tokens),
        mean_tokens=priced.pipeline.row.tokens,
        step_s=priced.step_s,
        simulated_s=None,
        bottleneck=bottleneck.module,
        model_flops=flops,
        mfu=flops / (priced.step_s * peak),
        tokens=work.tokens,
        allocated=sum(pool.gpus for pool in pools),
        not_run=tuple(_not_run(priced, modules)),
        chunk_slots=priced.chunk_slots,
        offload=priced.context.work.optim.offload,
    )


def _modules(priced: Priced) -> tuple[ModulePlan, ...]:
    context, pipeline, cut = priced.context, priced.pipeline, priced.cut
    memory = pipeline.memory(cut.stages)
    encoders = [_encoder(priced, place) for place in range(len(priced.encoders))]
    beside = 0.0
    if priced.mode == "colocated":
        # Each module runs beside what the others hold meanwhile: encoders what their backward
        # passes need, the backbone its states.
        held = [encoder.memory[0].total - encoder.memory[0].working for encoder in encoders]
        beside = sum(held)
        left = context.usable_bytes - max(rank.states for rank in memory)
        encoders = [
            replace(encoder, memory_bytes=int(left - (beside - own)))
            for encoder, own in zip(encoders, held, strict=True)
        ]
    mesh = pipeline.shape.mesh
    backbone = ModulePlan(
        module="backbone" if encoders else "model",
        gpu_type=context.pool.gpu_type,
        layout=Layout(
            **{name: getattr(mesh, name) for name in _SIZES},
            sharding=pipeline.shape.sharding,
            shard_ranks=pipeline.shape.shard_ranks,
            stages=cut.stages,
        ),
        microbatch=pipeline.seconds(cut),
        stage_s=cut.stage_s,
        fill_s=cut.fill_s,
        once=Seconds(),
        reduce_s=cut.reduce_s,
        optimizer_s=cut.optimizer_s,
        memory=memory,
        memory_bytes=int(context.usable_bytes - beside),
        heaviest_s=cut.heaviest_s,
    )
    return (*encoders, backbone)


def _encoder(priced: Priced, place: int) -> ModulePlan:
    context, price = priced.encoder_contexts[place], priced.encoders[place]
    in_flight = 1
    microbatch, once = Seconds(), price.both
    if priced.mode == "disaggregated":
        in_flight = context.in_flight(priced.pipeline.num_microbatches, priced.pipeline.stages)
        microbatch, once = price.both, Seconds()
        # Rows are sent while others are computed.
        waits_s = max(0.0, price.transfer_s - microbatch.total)
        microbatch = replace(microbatch, pp=microbatch.pp + waits_s)
    else:
        once = replace(once, pp=price.fill_s - once.total)
    mesh = price.shape.mesh
    return ModulePlan(
        module=context.model.encoders[place].name,
        gpu_type=context.pool.gpu_type,
        layout=Layout(
            tp=mesh.tp,
            dp=mesh.dp,
            sharding=price.shape.sharding,
            shard_ranks=price.shape.shard_ranks,
            stages=(_only_stage(context, context.model.encoders[place].name, price.again),),
            recompute=price.recompute,
        ),
        microbatch=microbatch,
        stage_s=(microbatch.total,),
        fill_s=price.fill_s if priced.mode == "disaggregated" else 0.0,
        once=once,
        reduce_s=price.reduce_s,
        optimizer_s=price.optimizer_s,
        memory=(price.memory(in_flight),),
        memory_bytes=context.usable_bytes,
    )


def _only_stage(context: Context, encoder: str, again: int) -> StageLayout:
    """The layers of an encoder, of which the first blocks are computed again."""
    layers = context.model.layers_of(encoder)
    blocks = sum(context.model.layers[number].takes is not None for number in layers)
    return StageLayout(
        first=0,
        end=len(layers),
        recompute="full" if again else "none",
        recompute_layers=again if 0 < again < blocks else None,
    )


def _time_s(module: ModulePlan, priced: Priced) -> float:
    """Seconds of a step that a module takes, or would take if it never waited."""
    return module.once.total + priced.pipeline.num_microbatches * max(module.stage_s)


def _flops(priced: Priced) -> float:
    """Model FLOPs of a step."""
    work, layers = priced.context.work, priced.context.model.layers
    frozen = [replace(x, products=tuple(p for p in x.products if p.frozen)) for x in layers]
    # Weights beside adapters have no gradient.
    spared = sum(getattr(_forward(priced, frozen), part) for part in work.trained)
    return work.batch * (train_flops(_forward(priced, layers), work.trained).total - spared)


def _forward(priced: Priced, layers: Sequence[Layer]) -> ModuleFlops:
    """Forward FLOPs of some of the products of all layers, for a mean sample."""
    model, tables, share = priced.context.model, priced.context.tables, priced.context.work.share
    found = ForwardFlops(layers)(model.text_counts(share))
    for place, encoder in enumerate(model.encoders):
        inputs = tables.inputs(place, share.encoded[encoder.modality].tokens)
        found = found + ForwardFlops(layers[encoder.first : encoder.end])(inputs)
    return found


def _not_run(priced: Priced, modules: tuple[ModulePlan, ...]) -> Iterator[str]:
    """What FlowTrain's runtime lacks for the plan."""
    model = priced.context.model
    if model.untrained:
        yield f"model_type={model.untrained} (no family trains it)"
    if priced.mode == "prefix" and priced.context.work.share.has_inputs:
        yield "mode prefix"
    for module in modules:
        layout = module.layout
        for name in ("tp", "cp", "pp", "ep"):
            if (size := getattr(layout, name)) > 1:
                yield f"{module.module}: {name}={size}"
    if len(names := model.encoder_names) > 1:
        yield f"several encoders ({', '.join(names)})"
    if len({module.gpu_type for module in modules}) > 1:
        yield "modules on GPUs of different types"
