"""Bytes of a rank beside its states and what its passes keep, while a layer runs backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from flowtrain.config.parallel import Sharding
from flowtrain.cost.communication import Mesh
from flowtrain.plan.arrays import BoolArray, FloatArray, IntArray
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables


@dataclass(frozen=True, slots=True, eq=False)
class Working:
    """The same at three moments of the backward pass of a microbatch.

    Attributes:
        head: While the output head runs, when all is kept, shape [num_rows].
        block: While a block of each kind runs, when the head has dropped what it kept, shape
            [num_kinds]; 0 for other layers. A block that is computed again has what that makes
            besides.
        end: When the first layer has run, and nothing is kept.
        gathered: Bytes of gathered weights among the first two, which stay from a forward pass to
            its backward pass.
        sent: Bytes of whole gradients that were scattered last. Of an encoder they stay until its
            next backward pass, but for the last one.
    """

    head: FloatArray
    block: FloatArray
    end: float
    gathered: float
    sent: float

    def beside(
        self, kept: FloatArray, kept_head: FloatArray | float, running: FloatArray
    ) -> FloatArray:
        """Bytes by which the highest of the three moments is above what is kept.

        Args:
            kept: Bytes kept of a full row, shape [num_rows, num_choices].
            kept_head: Those of the head among them, shape [num_rows, 1].
            running: The most that a block has while it runs, as for `kept`.
        """
        later = numpy.maximum(running - kept_head, self.end - kept)
        found: FloatArray = numpy.maximum(self.head[:, None], later)
        return found


def working_of(
    tables: Tables,
    rows: Sequence[Row],
    *,
    mesh: Mesh,
    sharding: Sharding,
    layers: IntArray,
    weights: FloatArray,
    trained: FloatArray,
    shares: FloatArray,
    in_chunks: BoolArray,
) -> Working:
    """Working memory of a module.

    Sharded modules are those of FSDP2, with a group of each block, and one of all other layers: the
    root. The weights of the root stay gathered through both passes of a microbatch, and its
    gradients stay whole until its first layer has run.

    Args:
        tables: The layers.
        rows: What is computed at once.
        mesh: Ranks of the module.
        sharding: What replicas share out.
        layers: Layers of each kind in the module, shape [num_kinds].
        weights: Parameters of a layer on a rank, gathered, shape [num_kinds].
        trained: Those that train.
        shares: Of these, those of which a rank has the sum.
        in_chunks: Whether the head goes in chunks, shape [num_rows].
    """
    value, total = tables.work.itemsize, float(tables.state[2])
    # Gradients are made in the dtype of the passes, and summed in that of the states.
    mixed = value != total
    blocks = tables.block & (layers > 0)
    root = numpy.where(tables.block, 0, layers)
    embedding = float(trained[tables.embedding] * (layers[tables.embedding] > 0))
    has_head, tied = bool(layers[tables.head]), False
    head = float(trained[tables.head]) if has_head else 0.0
    if has_head and tables.tied[0] and mesh.pp == 1:
        # Its gradients of head and embedding are summed when both are there.
        head, tied = embedding, embedding > 0
    root_trained = float(trained @ root)
    late = root_trained if tied else root_trained - embedding
    widest = float(weights[blocks].max(initial=0.0))
    block = numpy.zeros(len(layers))
    end = gathered = ahead = sent = 0.0
    cast = value * mixed
    if sharding == "replicated":
        # The gradient of a weight is made, and cast, before it is added to those before.
        block[blocks] = value * head * tied
        end = (value + total * mixed) * embedding + value * head * tied
    elif sharding == "optimizer":
        # A gradient of this microbatch beside the sum of those before; and in the last one what is
        # scattered, beside the part that arrives.
        held = value * late if mixed else value * head * tied
        own = (cast + total) * trained + total * shares
        block[blocks] = held + own[blocks]
        gone = ((trained - shares) * layers)[blocks].sum()
        end = cast * root_trained + total * (root_trained + float(shares @ root) - gone)
    else:
        gathered = value * float(weights @ root)
        # Weights of the block that runs, and of the next one, which is gathered in the meantime;
        # its gradients as they are made, and those of the one before as they are scattered.
        own = 2 * value * weights + (value + total) * trained
        block[blocks] = gathered + value * late + own[blocks]
        # All are made; then they are copied, and one is left when the part of this rank arrives.
        sent = total * root_trained
        end = max(
            gathered + value * root_trained,
            value * root_trained + sent,
            value * late + sent + total * float(shares @ root),
        )
        ahead = value * widest
    made = (value + total * (mixed and sharding == "replicated")) * head
    logits = _logits(tables, rows, mesh, in_chunks, made, value * head) if has_head else 0.0
    return Working(
        head=numpy.full(len(rows), gathered + ahead) + logits,
        block=block,
        # Of several stages the first one holds other microbatches, too.
        end=end if mesh.pp == 1 else 0.0,
        gathered=gathered,
        sent=sent,
    )


def _logits(
    tables: Tables,
    rows: Sequence[Row],
    mesh: Mesh,
    in_chunks: BoolArray,
    made: float,
    sum_of_chunks: float,
) -> FloatArray:
    """Working memory of the head: without the logarithms of probabilities, if it keeps them.

    First two gradients of these in float32: that of the loss, and that in front of the softmax. Of
    them one is left, in the dtype of the model, when the gradient of the weight is made. Chunks sum
    theirs before it is added to those before.

    Args:
        tables: The layers.
        rows: What is computed at once.
        mesh: Ranks of the module.
        in_chunks: Whether the head goes in chunks, shape [num_rows].
        made: Bytes of the gradient of its weight until it is added to those before.
        sum_of_chunks: Those of a sum of some chunks.

    Returns:
        Shape [num_rows].
    """
    value, exact, limit = tables.work.itemsize, tables.exact_itemsize, tables.work.logit_bytes
    logits = numpy.array([row.most_targets for row in rows]) * tables.model.vocabulary
    logits = logits / (mesh.tp * mesh.cp)
    whole = numpy.maximum(2 * exact * logits, made + (value - exact) * logits)
    chunk = max(
        3 * limit + sum_of_chunks,
        2 * sum_of_chunks + limit * value / exact,
        made,
    )
    found: FloatArray = numpy.where(in_chunks, chunk, whole)
    return found
