from __future__ import annotations

import numpy as np
from torch.distributed import TCPStore

from flowtrain.data.text import COMPACT, CompactText, expand
from flowtrain.steps import Document, StepPlan
from flowtrain.train.control.store import JobStore
from flowtrain.train.planning.texts import put_texts, take_texts


def document(sample: int, *, image_tokens: int = 0) -> tuple[Document, CompactText]:
    """A document of three text tokens, which are the sample's number, and an image at the end."""
    counts = [1, 1, 1, *([image_tokens] if image_tokens else [])]
    text = np.zeros(len(counts), dtype=COMPACT)
    text["id"], text["count"] = sample, counts
    grids = ((1, 2, 2 * image_tokens),) if image_tokens else ()
    return Document(
        sample=sample,
        num_tokens=sum(counts),
        num_targets=1,
        image_tokens=image_tokens,
        grids=grids,
    ), text


def test_each_slot_has_its_texts_and_a_rank_takes_them_once() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = JobStore(f"127.0.0.1:{server.port}", "test", timeout_s=10)
    made = [document(5), document(6, image_tokens=4), document(7), document(8, image_tokens=2)]
    a, b, c, d = (doc for doc, _ in made)
    plan = StepPlan(step=3, kind="train", slots=3, documents=(((a, b), (), (c,)), ((), (d,), ())))
    put_texts(store, plan, {doc.sample: text for doc, text in made})
    first = {slot: expand(t).input_ids.tolist() for slot, t in take_texts(store, plan, 0).items()}
    assert first == {0: [5] * 3 + [6] * 7, 2: [7] * 3}
    assert not store.has("text/3/0")
    second = {slot: expand(t).input_ids.tolist() for slot, t in take_texts(store, plan, 1).items()}
    assert second == {1: [8] * 5}
