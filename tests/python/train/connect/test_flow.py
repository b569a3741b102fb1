"""What a flow refuses before it has a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flowtrain.config import ConfigError
from flowtrain.train.connect.flow import Flow
from flowtrain.train.connect.part import FlowError
from flowtrain.train.connect.run import flow_fields, ranks_of


@pytest.mark.parametrize("scales", [False, True])
def test_a_step_of_the_optimizer_itself_is_refused_also_by_a_scaler(scales: bool) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop: Any = None
    flow = Flow({}, loop, optimizer, None, resume=False)
    scaler = torch.amp.GradScaler("cpu", enabled=scales)
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    with pytest.raises(FlowError, match=r"^optimizer\.step: .* call flow\.step\(\)"):
        scaler.step(optimizer)
    flow.close(None)
    optimizer.step()


def test_encoder_ranks_of_a_colocated_loop_and_unknown_layouts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^encoder_ranks=1 with layout='colocated': .* here 2,"):
        ranks_of("colocated", 1, size=2)
    unknown: Any = "apart"
    with pytest.raises(ConfigError, match="^layout='apart': give 'decoupled' or 'colocated'$"):
        ranks_of(unknown, None, size=2)


def test_a_state_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    loop: Any = None
    flow = Flow({"run": str(tmp_path)}, loop, optimizer, None, resume=False)
    with pytest.raises(FlowError, match=r"^flow\.state_dict: .* no checkpoint after 0 steps"):
        flow.state_dict()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ranks": 4}, "^connect: ranks=4: the ranks are those of the loop, .* leave ranks out$"),
        ({"elastic": True}, "^connect: elastic=True: .* leave elastic out$"),
    ],
)
def test_fields_of_the_ranks_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        flow_fields(fields)
