"""Training that was published, and what the planner's prices give.

Tokens per second of a GPU, of decoders without images, fully sharded over all GPUs. Efficiencies of
data sheets, and the share of overlapped collectives that is exposed, were chosen on the figures of
llm-foundry; the others are newer.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import numpy

from flowtrain.cost import Layer
from flowtrain.cost.communication import Mesh
from flowtrain.cost.decoder import decoder_layers
from flowtrain.plan.cluster import Cluster
from flowtrain.plan.cluster.known import node_of
from flowtrain.plan.describe import Encoder, InputShape, ModelDescription
from flowtrain.plan.pools import pools_of
from flowtrain.plan.prices.chain import Chain
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.pipeline import Pipeline
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.space import Rules
from flowtrain.plan.work import Work
from flowtrain.workloads import Workload

_PLENTY = 10**13


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder; `inner` is that of a gated MLP with as many parameters as its own."""

    width: int
    depth: int
    inner: int
    vocabulary: int
    tied: bool
    heads: int = 32
    kv_heads: int = 32

    @property
    def block(self) -> int:
        keys = self.width * self.kv_heads // self.heads
        return 2 * self.width * (self.width + keys) + 3 * self.width * self.inner

    def described(self) -> ModelDescription:
        """For the planner, behind an encoder that computes nothing."""
        text = SimpleNamespace(
            hidden_size=self.width,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            num_hidden_layers=self.depth,
            intermediate_size=self.inner,
            vocab_size=self.vocabulary,
            hidden_act="silu",
            model_type="llama",
        )
        layers = (Layer(name="none", part="encoder"), *decoder_layers(text))
        words = self.width * self.vocabulary
        parameters = (0, words, *[self.block] * self.depth, self.width, 0 if self.tied else words)
        none = (0,) * len(layers)
        return ModelDescription(
            name="decoder",
            layers=layers,
            parameters=parameters,
            experts=none,
            unused=none,
            vocabulary=self.vocabulary,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads,
            kv_width=self.width * self.kv_heads // self.heads,
            num_experts=0,
            chosen_experts=0,
            encoders=(
                Encoder(
                    name="none",
                    modality="vision",
                    first=0,
                    end=1,
                    width=0,
                    heads=1,
                    row_width=0,
                    projector_side="encoder",
                    shape=InputShape(),
                ),
            ),
            tied_parameters=words if self.tied else 0,
        )


def _mpt(width: int, depth: int) -> Decoder:
    # Its MLP is not gated: 8 width^2 parameters, and as much that autograd keeps.
    return Decoder(width, depth, round(8 / 3 * width), 50368, tied=True)


DECODERS = {
    "MPT-1B": _mpt(2048, 24),
    "MPT-3B": _mpt(2560, 32),
    "MPT-7B": _mpt(4096, 32),
    "MPT-13B": _mpt(5120, 40),
    "MPT-30B": _mpt(7168, 48),
    "MPT-70B": _mpt(8192, 80),
    "Llama-3-8B": Decoder(4096, 32, 14336, 128256, tied=False, kv_heads=8),
}


@dataclass(frozen=True, slots=True)
class Trained:
    """A measurement.

    Attributes:
        source: Where it was published.
        gpu: Type of the GPUs.
        node: GPUs of a node.
        gpus: GPUs.
        decoder: Name of the model.
        documents: Documents of a microbatch of a GPU.
        length: Tokens of each.
        microbatches: Microbatches of a step.
        recomputes: Whether blocks are computed again.
        tokens_per_s: Tokens per second of a GPU.
    """

    source: str
    gpu: str
    node: int
    gpus: int
    decoder: str
    documents: int
    length: int
    microbatches: int
    recomputes: bool
    tokens_per_s: float

    def predicted(self) -> float:
        """Tokens per second of a GPU by the planner's prices."""
        group = node_of(self.gpu).with_gpus(self.node)
        cluster = Cluster(groups=(group if self.gpus < self.node else group.with_gpus(self.gpus),))
        (pool,) = pools_of(cluster, "bfloat16", extrapolate=True)
        model, ones = DECODERS[self.decoder].described(), numpy.ones(1)
        document = Workload(
            name="documents",
            tokens=numpy.array([self.length]),
            visual_tokens=numpy.zeros(1, numpy.int64),
            cost=ones,
            encoder_cost=ones,
        )
        work = Work(
            workload=document,
            batch=self.gpus * self.documents * self.microbatches,
            trained=("backbone",),
        )
        tokens = self.documents * self.length
        pipeline = Pipeline(
            Chain(Tables(model, work, pool.timing), model.layers_of("model")),
            Shape(Mesh(dp=self.gpus), "full" if self.gpus > 1 else "replicated"),
            [Row(tokens, (0.0,), tokens, (0.0,), tokens)],
            microbatches=[self.microbatches],
            pool=pool,
            rules=Rules(),
            rows_bytes=[0.0],
            levels=[["full"] if self.recomputes else ["none"]],
        )
        cut = pipeline.cut(_PLENTY)
        assert cut is not None
        return tokens * self.microbatches / cut.step_s(self.microbatches)


FOUNDRY = "llm-foundry"
_FORGE = "KempnerForge, compiled"
PUBLISHED = (
    Trained(FOUNDRY, "A100-40GB", 8, 16, "MPT-7B", 16, 2048, 1, True, 3645),
    Trained(FOUNDRY, "A100-40GB", 8, 128, "MPT-7B", 18, 2048, 1, True, 3623),
    Trained(FOUNDRY, "A100-40GB", 8, 64, "MPT-13B", 16, 2048, 1, True, 1976),
    Trained(FOUNDRY, "A100-40GB", 8, 128, "MPT-30B", 6, 2048, 1, True, 865),
    Trained(FOUNDRY, "A100-40GB", 8, 128, "MPT-70B", 4, 2048, 1, True, 376),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-1B", 56, 512, 4, False, 23148),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-1B", 14, 2048, 4, False, 20513),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-1B", 3, 8192, 4, False, 13814),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-3B", 40, 512, 6, False, 12127),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-3B", 10, 2048, 2, False, 10811),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-3B", 3, 8192, 6, False, 7695),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-7B", 64, 1024, 2, True, 4357),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-7B", 6, 2048, 2, False, 4641),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-7B", 8, 8192, 2, True, 3206),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-7B", 2, 32768, 2, True, 1672),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-13B", 40, 1024, 3, True, 2330),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-13B", 2, 2048, 3, False, 2262),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-13B", 5, 8192, 3, True, 1795),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-30B", 6, 1024, 21, True, 946),
    Trained(FOUNDRY, "A100-80GB", 8, 8, "MPT-30B", 1, 8192, 21, True, 574),
    Trained(FOUNDRY, "A100-80GB", 8, 64, "MPT-70B", 8, 2048, 4, True, 410),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-1B", 56, 512, 4, False, 52275),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-1B", 14, 2048, 1, False, 45455),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-1B", 3, 8192, 4, False, 29157),
    Trained(FOUNDRY, "H100", 8, 64, "MPT-1B", 20, 2048, 1, False, 44402),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-3B", 40, 512, 6, False, 27965),
    Trained(FOUNDRY, "H100", 8, 16, "MPT-3B", 10, 2048, 3, False, 24142),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-3B", 3, 8192, 6, False, 16578),
    Trained(FOUNDRY, "H100", 8, 64, "MPT-3B", 6, 2048, 3, False, 22525),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-7B", 64, 1024, 2, True, 10203),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-7B", 6, 2048, 1, False, 10643),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-7B", 8, 8192, 2, True, 6935),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-7B", 2, 32768, 2, True, 3318),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-13B", 40, 1024, 3, True, 5502),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-13B", 2, 2048, 1, False, 4792),
    Trained(FOUNDRY, "H100", 8, 64, "MPT-13B", 2, 2048, 1, False, 4800),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-30B", 6, 1024, 21, True, 2084),
    Trained(FOUNDRY, "H100", 8, 32, "MPT-30B", 14, 2048, 3, True, 2308),
    Trained(FOUNDRY, "H100", 8, 8, "MPT-30B", 1, 8192, 21, True, 1384),
    Trained(FOUNDRY, "H100", 8, 64, "MPT-70B", 8, 2048, 4, True, 1039),
    Trained(_FORGE, "H200", 4, 1, "Llama-3-8B", 4, 4096, 2, True, 10471),
    Trained(_FORGE, "H200", 4, 4, "Llama-3-8B", 4, 4096, 2, True, 38983 / 4),
)
"""Of llm-foundry (github.com/mosaicml/llm-foundry at 061f2c7, scripts/train/benchmarking/README.md,
2023, bfloat16) and KempnerForge (github.com/KempnerInstitute/KempnerForge at 9f3f03a,
benchmarks/mfu_scaling, 2026, with torch.compile, 4 H200 in a node)."""


def training_rows() -> Iterator[dict[str, Any]]:
    """One row for each measurement."""
    for each in PUBLISHED:
        predicted = each.predicted()
        yield {
            **asdict(each),
            "predicted_tokens_per_s": predicted,
            "error": predicted / each.tokens_per_s - 1,
        }


def training_line(row: dict[str, Any]) -> str:
    return (
        f"{row['source']:22} {row['gpus']:3} {row['gpu']:9} {row['decoder']:10} "
        f"{row['microbatches']:2} x {row['documents']:2} x {row['length']:5} "
        f"{'recomputes' if row['recomputes'] else '':10}  "
        f"published {row['tokens_per_s']:6.0f} tokens/s  "
        f"predicted {row['predicted_tokens_per_s']:6.0f}  error {row['error']:+6.1%}"
    )


def training_summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Mean error, mean absolute error and worst one on each type of GPU, of llm-foundry's."""
    found = {}
    for name in ("A100", "H100"):
        errors = [r["error"] for r in rows if r["source"] == FOUNDRY and r["gpu"].startswith(name)]
        found[f"training_{name}_bias"] = statistics.mean(errors)
        found[f"training_{name}_error"] = statistics.mean(map(abs, errors))
        found[f"training_{name}_worst"] = max(map(abs, errors))
    return found
