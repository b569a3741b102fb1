"""Injected faults: each breaks one promise, to test that the promise is checked.

A rank calls one of these functions before it starts (`debug.fault: faults:<function>`). The
function replaces methods of FlowTrain's classes in that process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from flowtrain.cache.reader import Payload, Reader
from flowtrain.schedule import Action
from flowtrain.steps import StepPlan
from flowtrain.train.control.board import Board
from flowtrain.train.control.job import STOP
from flowtrain.train.parallel.buckets import GradientBuckets
from flowtrain.train.ranks import backbone, batch
from flowtrain.train.ranks.backbone import BackbonePart
from flowtrain.train.ranks.encoder import EncoderPart
from flowtrain.train.ranks.rank import Rank
from flowtrain.train.records.copies import Copies
from flowtrain.train.records.key import RecordKey
from flowtrain.train.records.receiver import RecordReceiver
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain.train.state.master import with_data

PAUSE_S = 5.0


def drop_gradient() -> None:
    """Lose the gradient of one record of the second step."""
    gather = RecordReceiver.gather

    def lossy(self: RecordReceiver, out: torch.Tensor, *, step: int, item: int) -> RecordKey:
        key = gather(self, out, step=step, item=item)
        if self.inbox.startswith("encoder") and (step, item) == (1, 0):
            out.zero_()
        return key

    RecordReceiver.gather = lossy


def slow_features() -> None:
    """Fetch features from a disk that takes a tenth of a second for each image."""
    get = Reader.get

    def slow(self: Reader, key: bytes) -> Payload | None:
        time.sleep(0.1)
        return get(self, key)

    Reader.get = slow


def local_count() -> None:
    """Divide the loss by the target tokens of the rank instead of the step, as many loops do."""
    backward = BackbonePart.backward

    def local(self: BackbonePart, plan: StepPlan, action: Action) -> None:
        mine = sum(
            d.num_targets for _, docs in plan.documents_of(self._context.world.rank) for d in docs
        )
        backward(self, replace(plan, num_targets=mine), action)

    BackbonePart.backward = local


def slow_lengths() -> None:
    """Report that documents of 96 and more tokens took twice as long as others for each token."""
    backward = BackbonePart.backward

    def slow(self: BackbonePart, plan: StepPlan, action: Action) -> None:
        backward(self, plan, action)
        rank, slot = self._context.world.rank, action.index
        place = rank * plan.slots + slot
        assert self.sums.slot_seconds[place] > 0
        tokens = [
            d.num_tokens * (2 if d.num_tokens >= 96 else 1) for d in plan.documents[rank][slot]
        ]
        self.sums.slot_seconds[place] = float(sum(tokens))

    BackbonePart.backward = slow


def slow_lengths_without_end() -> None:
    """`slow_lengths`, and let this rank work before its 56th step until it is killed."""
    slow_lengths()
    _hold(55, "never")


def leak_documents() -> None:
    """Let the documents of a microbatch attend to each other."""
    packed_batch = backbone.packed_batch

    def leaky(*arguments: Any, **options: Any) -> Any:
        packed = packed_batch(*arguments, **options)
        return replace(packed, doc_lengths=[sum(packed.doc_lengths)])

    backbone.packed_batch = leaky


def skip_tap() -> None:
    """Zero the first deepstack tap on its way to the backbone."""
    get = BackbonePart.get

    def without_tap(self: BackbonePart, plan: StepPlan, action: Action) -> None:
        get(self, plan, action)
        item = plan.items[action.index]
        width = self._context.family.config.text_config.hidden_size
        features = self._slots[plan.step, item.slot].features
        features[item.row : item.row + item.num_rows, width : 2 * width] = 0

    BackbonePart.get = without_tap


def stale_weights() -> None:
    """Let the encoder encode all steps with its initial weights."""
    encode = EncoderPart._encode
    first: list[torch.Tensor] = []

    def stale(self: EncoderPart, plan: StepPlan, item: Any, *, with_graph: bool) -> Any:
        parameters = self.module.parameters
        if not first:
            first.extend(p.detach().clone() for p in parameters)
        with with_data(parameters, first):
            return encode(self, plan, item, with_graph=with_graph)

    EncoderPart._encode = stale


def mean_gradients() -> None:
    """Let a sharded module average its gradients over the ranks, as FSDP2 does by default."""
    FSDPModule.set_gradient_divide_factor = lambda *_: None
    FSDPModule.set_force_sum_reduction_for_comms = lambda *_: None


def double_gradient() -> None:
    """Write the gradient of one record of the second step twice."""
    gather = RecordReceiver.gather

    def twice(self: RecordReceiver, out: torch.Tensor, *, step: int, item: int) -> RecordKey:
        key = gather(self, out, step=step, item=item)
        if self.inbox.startswith("encoder") and (step, item) == (1, 0):
            out.mul_(2)
        return key

    RecordReceiver.gather = twice


def weighty_dummy() -> None:
    """Let the tokens of an empty slot be targets."""
    empty_batch = batch.empty_batch

    def with_targets(*arguments: Any, **options: Any) -> Any:
        made = empty_batch(*arguments, **options)
        made.labels.fill_(1)
        return replace(made, predicting=torch.zeros_like(made.input_ids[:1]))

    batch.empty_batch = with_targets


def halt() -> None:
    """Stop this process before its third gradient reduction."""
    _before(GradientBuckets, "finish", 3, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def halt_in_forward() -> None:
    """Stop this process before its third pass of a slot, in which other ranks wait for it."""
    _before(BackbonePart, "forward", 3, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def sleep_in_forward() -> None:
    """Let this process sleep for a minute before its third pass of a slot."""
    _before(BackbonePart, "forward", 3, lambda: time.sleep(60))


def hold() -> None:
    """Let this backbone rank work before its third step until the store has the key `go`."""
    _hold(2, "go")


def hold_twice() -> None:
    """`hold`, and let this rank work before its eleventh step until there is the key `go on`."""
    hold()
    _hold(10, "go on")


def hold_third_until_stopped() -> None:
    """Let this backbone rank work before its third step until the run is told to stop."""
    _hold(2, STOP)


def hold_ninth_until_stopped() -> None:
    """Let this backbone rank work before its ninth step until the run is told to stop."""
    _hold(8, STOP)


def never_end_fifth() -> None:
    """Let this backbone rank work before its fifth step until it is killed."""
    _hold(4, "never")


def never_end_ninth() -> None:
    """Let this backbone rank work before its ninth step until it is killed."""
    _hold(8, "never")


def _hold(step: int, key: str) -> None:
    load = BackbonePart.load

    def held(self: BackbonePart, plan: StepPlan, action: Action) -> None:
        while plan.step == step and not self._context.store.has(key):
            time.sleep(0.02)
        load(self, plan, action)

    BackbonePart.load = held


def die_with_claims() -> None:
    """Kill this encoder rank when it has claimed items, and encoded some."""
    _before(EncoderPart, "encode", 3, _die)


def die_before_record() -> None:
    """Kill this encoder rank when the board says that its item is published, and it is not yet."""
    _before(EncoderPart, "put", 3, _die)


def die_within_record() -> None:
    """Kill this encoder rank when a part of a record is published."""
    publish = Copies.publish
    parts = 0

    def some(self: Copies, rows: torch.Tensor, lease: Any, key: int) -> None:
        nonlocal parts
        parts = parts + 1 if RecordKey.unpack(key).part else parts
        if parts == 2:
            _die()
        publish(self, rows, lease, key)

    Copies.publish = some


def stop_before_publish() -> None:
    """Stop encoder rank 0 when it has encoded an item, and `hold`."""
    hold()
    if os.environ["RANK"] == "0":
        _before(Board, "publish", 1, _stop)  # On a busy machine it may get few.


def stop_before_record() -> None:
    """Stop encoder rank 0 when the board says that an item of it is published, and `hold`."""
    hold()
    if os.environ["RANK"] == "0":
        _before(EncoderPart, "put", 1, _stop)


def die_in_seventh_step() -> None:
    """Kill this encoder rank when it has encoded some of the seventh step."""
    put = EncoderPart.put

    def dying(self: EncoderPart, plan: StepPlan, action: Action) -> None:
        put(self, plan, action)
        if plan.step == 6 and action.index == 1:
            _die()

    EncoderPart.put = dying


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def slow_second_save() -> None:
    """Let the second checkpoint take a minute to write."""
    _before(Checkpoints, "_complete", 2, lambda: time.sleep(60))


def pause() -> None:
    """Let this backbone rank sleep before a slot, a step and a reduction."""
    _before(BackbonePart, "get", 2, lambda: time.sleep(PAUSE_S))
    _before(Rank, "_begin", 2, lambda: time.sleep(PAUSE_S))
    _before(GradientBuckets, "finish", 3, lambda: time.sleep(PAUSE_S))


def _before(kind: type, method: str, count: int, act: Callable[[], None]) -> None:
    """Call `act` before call number `count` of a method."""
    plain = getattr(kind, method)
    calls = 0

    def acting(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            act()
        return plain(*arguments, **named)

    setattr(kind, method, acting)
