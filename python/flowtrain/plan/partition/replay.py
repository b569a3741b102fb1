"""Time of a step of 1F1B with uneven stages, by replay of its schedule."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain.plan.partition.stages import Stage


def replay(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    *,
    microbatches: int,
    forward_send_s: Sequence[float] | None = None,
    backward_send_s: Sequence[float] | None = None,
    overlapped: bool = False,
) -> float:
    """Seconds from the first forward pass to the end of the last backward pass.

    1F1B without interleaving: stage s of p runs p - s - 1 forward passes ahead, then one forward
    and one backward pass in turn, then the backward passes that are left. A pass begins when the
    stage is free and its input has arrived.

    Args:
        forward_s: Forward pass of a microbatch by stage.
        backward_s: Backward pass of a microbatch by stage, recomputation included.
        microbatches: Microbatches per step.
        forward_send_s: Time to send activations across each cut, one value fewer than stages;
            None is 0.
        backward_send_s: The same for gradients.
        overlapped: Whether a stage computes while it sends. A link sends one microbatch at a time
            in each direction. If not, a stage is busy until it has sent.

    Raises:
        ValueError: The lengths do not match, or there is no stage or no microbatch.
    """
    stages = len(forward_s)
    cuts = [0.0] * (stages - 1)
    forward_send_s = cuts if forward_send_s is None else forward_send_s
    backward_send_s = cuts if backward_send_s is None else backward_send_s
    _check(stages, microbatches, backward_s, forward_send_s, backward_send_s)
    free_s = [0.0] * stages  # When a stage can begin its next pass.
    forward = _Direction(forward_s, [*forward_send_s, 0.0], free_s, overlapped)
    backward = _Direction(backward_s, [0.0, *backward_send_s], free_s, overlapped)
    # In slots of one pass, which set the order and no times: stage s runs forward pass i in slot
    # s + 2 i, backward pass i in slot 2 p - 1 - s + 2 i. Every input is made in the slot before.
    for slot in range(2 * (stages + microbatches) - 2):
        for stage in range(stages):
            number, odd = divmod(slot - stage, 2)
            if not odd and 0 <= number < microbatches:
                forward.run(stage, to=stage + 1)
            number, odd = divmod(slot - (2 * stages - 1 - stage), 2)
            if not odd and 0 <= number < microbatches:
                backward.run(stage, to=stage - 1)
    return max(free_s)


def replay_stages(stages: Sequence[Stage], *, microbatches: int, overlapped: bool = False) -> float:
    """Seconds of a step with these stages, as in `replay`."""
    return replay(
        [stage.forward_s for stage in stages],
        [stage.backward_s for stage in stages],
        microbatches=microbatches,
        forward_send_s=[stage.forward_send_s for stage in stages[:-1]],
        backward_send_s=[stage.backward_send_s for stage in stages[1:]],
        overlapped=overlapped,
    )


class _Direction:
    """Passes and sends of one direction."""

    def __init__(
        self,
        pass_s: Sequence[float],
        send_s: Sequence[float],
        free_s: list[float],
        overlapped: bool,
    ) -> None:
        self._pass_s, self._send_s, self._overlapped = pass_s, send_s, overlapped
        self._free_s = free_s
        self._arrived_s = [0.0] * (len(pass_s) + 1)  # One more, for what both ends send to nobody.

    def run(self, stage: int, to: int) -> None:
        """Run the next pass of a stage, and send its result."""
        done_s = max(self._free_s[stage], self._arrived_s[stage]) + self._pass_s[stage]
        self._free_s[stage] = done_s
        if self._overlapped:  # The link is free when the previous microbatch has arrived.
            done_s = max(done_s, self._arrived_s[to])
        self._arrived_s[to] = done_s + self._send_s[stage]
        if not self._overlapped:
            self._free_s[stage] = self._arrived_s[to]


def _check(
    stages: int, microbatches: int, backward_s: Sequence[float], *sends: Sequence[float]
) -> None:
    if stages < 1 or microbatches < 1:
        raise ValueError(
            f"a replay needs a stage and a microbatch, not {stages} stages and "
            f"microbatches={microbatches}"
        )
    if len(backward_s) != stages:
        raise ValueError(
            f"backward_s has {len(backward_s)} stages and forward_s {stages}; give one value per "
            "stage"
        )
    for send_s in sends:
        if len(send_s) != stages - 1:
            raise ValueError(
                f"times to send are given for {len(send_s)} cuts; {stages} stages have {stages - 1}"
            )
