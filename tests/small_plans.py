"""Plans of few slots, for tests of schedules."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain.config.layout import RankLayout
from flowtrain.config.parallel import Meets
from flowtrain.schedule import Program, Template, roles
from flowtrain.steps import Document, EncoderItem, StepPlan

COLOCATED = RankLayout.colocated_on(2)
DECOUPLED = RankLayout.decoupled(1, 2)

# (encoder, reader, slot) of each item. The second rank encodes an item that the first one reads.
SHARED = ((0, 0, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1))
# The second rank encodes a dummy in slot 1.
WITH_DUMMY = ((0, 0, 0), (1, 1, 0), (0, 0, 1), (1, -1, 1))
OF_ONE = tuple((0, reader, slot) for _, reader, slot in SHARED)


def plan(step: int, layout: RankLayout, items: Sequence[tuple[int, int, int]] = ()) -> StepPlan:
    """Two slots for each rank; the last one of the second rank is empty."""
    document = Document(sample=0, num_tokens=8, num_targets=1, image_tokens=0, grids=())
    slots = (((document,), (document,)), ((document,), ()))
    items = items or (SHARED if layout.colocated else OF_ONE)
    return StepPlan(
        step=step,
        kind="train",
        slots=2,
        documents=slots[: layout.backbone_ranks],
        items=tuple(
            EncoderItem(
                index=index,
                encoder=encoder,
                reader=reader,
                slot=slot,
                row=0,
                num_rows=0 if reader < 0 else 4,
                images=(),
            )
            for index, (encoder, reader, slot) in enumerate(items)
        ),
        num_targets=3,
    )


def program(
    layout: RankLayout,
    template: Template,
    *,
    trains_encoder: bool = True,
    steps: int = 1,
    items: Sequence[tuple[int, int, int]] = (),
    meets: Meets = "never",
) -> Program:
    """The program of so many steps, all with the same items."""
    plans = [plan(step, layout, items) for step in range(steps)]
    plans.append(StepPlan(step=steps, kind="end"))
    return Program(
        {
            role.label: tuple(template.expand(role, plans.__getitem__))
            for role in roles(layout, trains_encoder=trains_encoder, meets=meets)
        }
    )
