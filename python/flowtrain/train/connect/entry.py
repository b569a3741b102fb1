"""`flowtrain.connect`: the flow in a training loop of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from flowtrain.train.connect.flow import Flow
from flowtrain.train.connect.model import LoopModel
from flowtrain.train.connect.optimizer import EncoderGroups, check_parameters, take_out
from flowtrain.train.connect.run import (
    Layout,
    check_sections,
    dtypes_of,
    flow_fields,
    parallel_of,
    ranks_of,
)
from flowtrain.train.control.ending import JobFailed
from flowtrain_core import FlowTrainError


@contextmanager
def connect(
    job: Path | str,
    model: Any,
    optimizer: torch.optim.Optimizer,
    *,
    mode: Literal["strict", "frozen"] = "strict",
    layout: Layout = "decoupled",
    folder: Path | str | None = None,
    encoder_ranks: int | None = None,
    clip_norm: float | None = None,
    compute_dtype: torch.dtype | None = None,
    save_every: int = 0,
    keep: int = 2,
    resume: bool = False,
    **flow: Any,
) -> Iterator[Flow]:
    """Within the block, ranks of a job encode the images of a training loop: others, or its own.

        with flowtrain.connect("job", model, optimizer) as flow:
            for step in flow.steps("train.jsonl", samples=32, max_tokens=8192):
                for batch in step:
                    loss = model(**batch).loss * batch.weight
                    loss.backward()
                flow.step()

    The encoder ranks are other processes of this host, `flowtrain encoder --job job`. With
    `layout="colocated"` there are none: the ranks of the loop deal the images of each step among
    themselves. The encoder has the optimizer of the group that encoder and projector are in, with
    its learning rate of each step. The parts in front of the cut are deleted from `model`, and
    their parameters taken out of `optimizer`. The numbers are those of the loop with the whole
    model.

    Of a loop with several ranks the first hosts the job, and each gets microbatches of its own, as
    many as the others. They wrap the model in DDP within the block. With FSDP2 they divide it
    before, the tower as a part of its own; a colocated encoder is divided over all ranks then.

    Leaving the block closes the job: encoder ranks and workers end, and nothing is left in shared
    memory.

    Args:
        job: Folder of the job, as that of a run; the encoder ranks are given it too.
        model: A Hugging Face vision-language model, loaded from a local folder; with `frozen` also
            one whose language model has adapters of PEFT.
        optimizer: `torch.optim.SGD` or `torch.optim.AdamW` of all parameters that train.
        mode: `strict` trains the encoder, `frozen` does not. Encoder and projector must require
            gradients accordingly.
        layout: `decoupled`, with encoder ranks, or `colocated`, without.
        folder: Folder from which the tower is loaded; by default that of the model.
        encoder_ranks: Number of encoder ranks; by default 1.
        clip_norm: Maximum gradient norm over all parameters; None does not clip.
        compute_dtype: Dtype in which the encoder computes, and in which its features cross the
            pool, such as that of the loop's autocast; by default that of the weights.
        save_every: Steps between checkpoints of all weights and of both optimizers; 0 saves only
            at the end.
        keep: Number of checkpoints to keep; the oldest are deleted.
        resume: Go on from the last checkpoint in the folder, if there is one. The schedulers of
            the loop are the caller's: `Step.number` counts from the first step of all.
        **flow: Fields of section `flow` of a run, such as `timeout_s`, but those of its ranks.

    Raises:
        ConfigError: Model, optimizer or a field cannot be used.
    """
    given = LoopModel(model, mode, folder)
    front = given.in_front()
    check_parameters(optimizer, given.model)
    trained = {name: parameter for name, parameter in front.items() if parameter.requires_grad}
    groups = EncoderGroups(optimizer, trained) if trained else None
    given.check_weights()
    sections = {
        "run": str(Path(job).absolute()),
        "model": {
            "path": str(given.folder),
            "freeze": list(given.frozen),
            "device": given.device.type,
            **dtypes_of(given.dtype, compute_dtype),
        },
        "optim": {
            "clip_norm": clip_norm,
            **({} if groups is None else groups.section()),
        },
        "flow": {
            **ranks_of(layout, encoder_ranks, size=given.size),
            "mode": mode,
            "elastic": False,
            **flow_fields(flow),
        },
        "checkpoint": {"every": save_every, "keep": keep},
        "parallel": parallel_of(given, layout),
    }
    check_sections(sections)  # A model without its tower would have to be loaded again.
    take_out(optimizer, front)
    given.drop_tower()
    connected = Flow(sections, given, optimizer, groups, resume=resume)
    try:
        yield connected
    except BaseException as error:
        # Of torch, such as that a collective of the loop has lost its connection.
        unnamed = isinstance(error, RuntimeError) and not isinstance(error, FlowTrainError)
        reason = connected.failure() if unnamed else None
        connected.close(error)
        if reason is None:
            raise
        raise JobFailed(reason) from error
    connected.close(None)
