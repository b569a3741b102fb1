"""Modules of a small model, priced on small GPUs, for tests of prices."""

from __future__ import annotations

from typing import Any

from flowtrain.cost.communication import Mesh
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.partition import Level
from flowtrain.plan.prices.chain import Chain
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.encoder import Chunks, EncoderPrice, encoder_prices
from flowtrain.plan.prices.pipeline import Pipeline
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.space import Rules
from flowtrain.plan.work import Work
from tests.planned import small_model, small_pool, small_work

ROW = Row(2000.0, (900.0,), 3000.0, (1200.0,), 1000.0)
PLENTY = 10**12
SHARE = 0.5
"""Of the time in which computation hides a collective, what is exposed, and what is not."""


def pipeline(
    mesh: Mesh,
    *,
    model: ModelDescription | None = None,
    work: Work | None = None,
    module: str = "model",
    sharding: Any = "replicated",
    offload: bool = False,
    microbatches: int = 4,
    levels: tuple[Level, ...] = ("none", "full"),
    **pool: Any,
) -> Pipeline:
    model, work = model or small_model(), work or small_work()
    gpus = small_pool(64, **pool)
    chain = Chain(Tables(model, work, gpus.timing), model.layers_of(module))
    return Pipeline(
        chain,
        Shape(mesh, sharding, offload=offload),
        [ROW],
        microbatches=[microbatches],
        pool=gpus,
        rules=Rules(),
        rows_bytes=[0.0],
        levels=(levels,),
    )


def encoders(
    shape: Shape,
    work: Work,
    tokens: float = 1000.0,
    *,
    chunks: Chunks | None = None,
    **pools: Any,
) -> list[EncoderPrice]:
    pool, model = small_pool(64, **pools), small_model()
    chain = Chain(Tables(model, work, pool.timing), model.layers_of("encoder"))
    return encoder_prices(
        chain,
        shape,
        encoder=0,
        tokens=tokens,
        groups=1,
        pool=pool,
        rules=Rules(),
        chunks=chunks,
    )
