"""Configuration of the ranks, and of how their modules are coupled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from flowtrain.config.cache import CacheConfig
from flowtrain.config.checks import ConfigError, not_negative, positive, require
from flowtrain.config.layout import RankLayout

Mode = Literal["frozen", "strict", "bounded"]
LayoutKind = Literal["auto", "colocated", "decoupled"]

ITEM_TOKENS: Mapping[str, int] = MappingProxyType({"cpu": 1024, "cuda": 8192})
"""Defaults of `flow.item_tokens` by device. On a GPU each item costs the host the launches of a
whole pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowConfig:
    """Which ranks hold which module, and how the modules are coupled."""

    layout: LayoutKind = "auto"
    """`colocated`: each of `ranks` ranks holds both modules. `decoupled`: `encoder_ranks` ranks
    hold the encoder, and `backbone_ranks` others the backbone. `auto`: the kind whose numbers are
    given; without any, kind and numbers are chosen at the start of the run."""
    ranks: int | None = None
    """Ranks of a colocated run."""
    encoder_ranks: int | None = None
    """Encoder ranks of a decoupled run; 1 if only `backbone_ranks` is given."""
    backbone_ranks: int | None = None
    """Backbone data-parallel ranks of a decoupled run; 1 if only `encoder_ranks` is given."""
    profile: Path | None = None
    """Times that `flowtrain profile` measured of this model on this machine, from which `auto`
    chooses; without them, it estimates them from a data sheet or a short calibration."""
    mode: Mode = "strict"
    """How the encoder trains. `strict`: with the numbers of a plain loop. `bounded`: with weights
    up to `staleness` steps old. `frozen`: not at all, so that it can run ahead; a projector that
    trains is computed with the backbone then."""
    staleness: int = 0
    """Maximum age in steps of the encoder's weights in `bounded`."""
    recompute: bool = False
    """Whether the encoder encodes each item again before its backward pass. Otherwise it keeps the
    activations of all items until their gradients arrive: in `strict` those of a step, in `bounded`
    those of `staleness` + 1 steps. Recomputation keeps those of one item and takes one more forward
    pass. The numbers are the same."""
    chunk_slots: int | None = None
    """Slots that a colocated rank takes at a time: it encodes what they read, computes them, and
    runs the encoder's backward, before it goes on. It then keeps the activations of their items
    alone, and encodes nothing again. None takes all slots of a step. The numbers are the same."""
    item_tokens: int | None = None
    """Maximum image tokens encoded at once on an encoder rank, counted as rows that cross the pool;
    a larger image is encoded alone. None takes 1024 on CPUs, and 8192 on GPUs."""
    plan_ahead: int = 4
    """Number of steps planned ahead of the current step."""
    elastic: bool = True
    """Whether the encoder ranks of a decoupled `frozen` run are single processes that may die,
    leave and join while the run goes on. Each takes the next item that is free. It needs a
    replicated encoder; other runs ignore it."""
    correct: bool = False
    """Learn from measured times which lengths of documents run slow, and balance the ranks with
    that, for as long as it pays. A rerun then has other plans, unless `corrections` gives it the
    log."""
    corrections: Path | None = None
    """`plan.log` of a run with `correct` whose corrections hold at the same steps of this run, in
    place of learning, so that both have equal plans."""
    cache: CacheConfig = field(default_factory=CacheConfig)
    """Features of a frozen encoder on disk, for further epochs and runs."""
    port: int = 0
    """Port of the job's store on this host; 0 lets the system choose."""
    timeout_s: float = 120.0
    """Timeout for a silent rank. Each rank's process beats about once a second, also in a long
    step, checkpoint or compilation; slow ranks are waited for. The run ends if for this long a rank
    has not beaten, all ranks have waited for each other, or a rank's workers have finished no read;
    the start of its first worker does not count. Ranks that die are detected within seconds. A rank
    that hangs in a call which releases Python's lock is not detected."""
    start_timeout_s: float = 300.0
    """Timeout for the processes of all ranks to join the job, before they load their models."""

    def __post_init__(self) -> None:
        self._check_layout()
        if self.item_tokens is not None:
            positive(flow__item_tokens=self.item_tokens)
        positive(
            flow__plan_ahead=self.plan_ahead,
            flow__timeout_s=self.timeout_s,
            flow__start_timeout_s=self.start_timeout_s,
        )
        not_negative(flow__staleness=self.staleness)
        require(
            0 <= self.port < 1 << 16,
            f"flow.port={self.port}: it must be at least 0 and less than 65536",
        )
        require(
            (self.mode == "bounded") == (self.staleness > 0),
            f"flow.staleness={self.staleness} with flow.mode={self.mode}: bounded needs a "
            "staleness of at least 1, the other modes need 0",
        )
        require(
            not (self.recompute and self.mode == "frozen"),
            "flow.recompute=true with flow.mode=frozen: a frozen encoder has no backward pass; "
            "leave flow.recompute out",
        )
        require(
            self.cache.path is None or self.mode == "frozen",
            f"flow.cache.path={self.cache.path} with flow.mode={self.mode}: the features of an "
            "encoder that trains change with each step; set flow.mode to frozen (a projector may "
            "train then), or leave flow.cache out",
        )
        if self.chunk_slots is not None:
            positive(flow__chunk_slots=self.chunk_slots)
            require(
                self.ranks is not None and self.mode != "bounded",
                f"flow.chunk_slots={self.chunk_slots} with flow.mode={self.mode}, flow.ranks="
                f"{self.ranks}: it is for colocated ranks, and not for bounded, which encodes "
                "whole steps ahead; give flow.ranks, or leave flow.chunk_slots out",
            )
        require(
            self.staleness < self.plan_ahead,
            f"flow.staleness={self.staleness}: it must be less than "
            f"flow.plan_ahead={self.plan_ahead}; raise flow.plan_ahead",
        )
        require(
            not self.correct or self.corrections is None,
            f"flow.correct=true with flow.corrections={self.corrections}: give one of the two: "
            "correct learns corrections, corrections takes those of a log",
        )

    def _check_layout(self) -> None:
        given = {
            name: value
            for name in ("ranks", "encoder_ranks", "backbone_ranks")
            if (value := getattr(self, name)) is not None
        }
        positive(**{f"flow__{name}": value for name, value in given.items()})
        shown = ", ".join(f"flow.{name}={value}" for name, value in given.items())
        other = {"colocated": {"encoder_ranks", "backbone_ranks"}, "decoupled": {"ranks"}}
        require(
            not (given.keys() & other.get(self.layout, set()))
            and not ("ranks" in given and len(given) > 1),
            f"flow.layout={self.layout} with {shown}: flow.ranks is for colocated runs, "
            "flow.encoder_ranks and flow.backbone_ranks are for decoupled ones; give those of one "
            "kind",
        )
        require(
            self.layout != "colocated" or self.ranks is not None,
            "flow.layout=colocated without flow.ranks: give the number of ranks, or set "
            "flow.layout=auto",
        )

    @property
    def rank_layout(self) -> RankLayout | None:
        """The layout that these fields give; None if it is chosen at the start of the run."""
        if self.ranks is not None:
            return RankLayout.colocated_on(self.ranks)
        if self.layout == "auto" and self.encoder_ranks is None and self.backbone_ranks is None:
            return None
        return RankLayout.decoupled(self.encoder_ranks or 1, self.backbone_ranks or 1)

    @property
    def chosen(self) -> RankLayout:
        """The layout of a run that has started.

        Raises:
            ConfigError: It has not been chosen yet.
        """
        layout = self.rank_layout
        if layout is None:
            raise ConfigError("flow.layout=auto: the layout is chosen when a run starts")
        return layout

    def with_layout(
        self, layout: RankLayout, *, recompute: bool = False, chunk_slots: int | None = None
    ) -> FlowConfig:
        """These fields with a layout in numbers.

        Args:
            layout: The layout.
            recompute: Whether it needs `recompute`, so that it is set.
            chunk_slots: Its `chunk_slots`; None leaves that as it is.
        """
        recompute = recompute or self.recompute
        chunk_slots = chunk_slots or self.chunk_slots
        if layout.colocated:
            return replace(
                self,
                layout="colocated",
                ranks=layout.backbone_ranks,
                encoder_ranks=None,
                backbone_ranks=None,
                recompute=recompute,
                chunk_slots=chunk_slots,
            )
        return replace(
            self,
            layout="decoupled",
            ranks=None,
            encoder_ranks=layout.encoder_ranks,
            backbone_ranks=layout.backbone_ranks,
            recompute=recompute,
        )
