"""A rank: executes the schedule with the modules that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flowtrain.schedule import KINDS, Action, Kind, Role, Template
from flowtrain.steps import SpaceNeed, StepPlan
from flowtrain.train.planning.planner import Planner
from flowtrain.train.planning.plans import PlanError
from flowtrain.train.ranks.backbone import BackbonePart
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.encoder import EncoderPart
from flowtrain.train.ranks.evaluations import Evaluation, Evaluations
from flowtrain.train.ranks.memory import record_memory
from flowtrain.train.ranks.profiler import Profiler
from flowtrain.train.ranks.step import Delays
from flowtrain.train.ranks.update import Update
from flowtrain.train.records.receiver import RecordReceiver
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain_core.edges import Explanation

Handler = Callable[[StepPlan, Action], None]

_PAUSED: tuple[Kind, ...] = ("encode", "get", "forward", "encoder_backward")


class Rank:
    """Executes the actions of a rank in the order of its schedule.

    Args:
        context: Connections and services of this rank.
        template: The order of the steps.
        role: What this rank holds and does in it.
        update: Ends each step.
        checkpoints: Saves the modules of this rank.
        encoder: The encoder's part, if this rank holds the encoder.
        backbone: The backbone's part, if this rank holds the backbone.
        evaluated: Called with each evaluation and its step; the evaluation is None if it was left
            out because the run ends early. None does not call.
        planner: Told of each step; None except on that rank.
        eval_planner: Planner of the evaluations; None except on that rank, and without evaluations.
        profiler: Traces some steps.
        delays: Pauses before actions.
        explained: The error that says more than the one that an action raised, or None.

    Attributes:
        update: Ends each step.
    """

    def __init__(
        self,
        context: RankContext,
        template: Template,
        role: Role,
        update: Update,
        checkpoints: Checkpoints,
        *,
        encoder: EncoderPart | None,
        backbone: BackbonePart | None,
        evaluated: Callable[[int, Evaluation | None], None] | None,
        planner: Planner | None,
        eval_planner: Planner | None,
        profiler: Profiler,
        delays: Delays,
        explained: Callable[[Action, Exception], Exception | None],
    ) -> None:
        self._context = context
        self._template = template
        self._role = role
        self.update = update
        self._checkpoints = checkpoints
        self._encoder = encoder
        self._backbone = backbone
        self._parts = [part for part in (encoder, backbone) if part is not None]
        self._evaluated = evaluated
        self._planner = planner
        self._eval_planner = eval_planner
        self._evaluations = Evaluations(
            context,
            self._role,
            backbone=backbone,
            execute=self._execute,
            planner=eval_planner,
        )
        self._handlers: dict[tuple[Kind, str | None], Handler] = {
            ("evaluate", None): self._evaluate,
            ("checkpoint", None): self._checkpoint,
            ("forget", None): self._forget,
        }
        for module, part in (("encoder", encoder), ("backbone", backbone), (None, self.update)):
            self._handlers[("resize", module)] = self._resize
            for kind in KINDS:
                if (handler := getattr(part, kind, None)) is not None:
                    self._handlers[kind, module] = handler
        self._handlers["exchange", None] = self._exchange
        self._sizes = SpaceNeed(activation=0, gradient=0)
        self._events = context.activity.events
        self._profiler = profiler
        self._delays = delays
        self._explained = explained
        self._step = 0
        self._last: StepPlan | None = None
        self._eval_loss: float | None = None
        self._failed: tuple[int, Exception] | None = None

    def run(self, first: int) -> None:
        """Execute the schedule from step `first` to the end of the plans."""
        for _ in self.actions(first):
            pass

    def actions(self, first: int) -> Iterator[Action]:
        """As `run`, but yield each action before it is executed."""
        context = self._context
        self._reserve(context.segments.initial(context.plans.first_need()))
        self._events.restart()
        with self._events.span("run"):
            self.update.restart()
            self._begin(first)
            for action in self._template.expand(self._role, self._plan, first=first):
                yield action
                self._execute_in_turn(action)
                if self._is_abandoned(action):
                    yield from self._abandon()
                    break
        self._profiler.close()
        self._checkpoints.wait()
        for part in self._parts:
            part.sender.drain()
        for receiver in self._receivers:
            receiver.drain()
        if self._encoder is not None:
            self._encoder.close()

    def edges(self) -> list[Explanation]:
        """Current state of the edges from and to this rank."""
        sent = [edge for part in self._parts for edge in part.sender.edges()]
        return sent + [edge for receiver in self._receivers for edge in receiver.edges()]

    @property
    def _receivers(self) -> list[RecordReceiver]:
        return [part.receiver for part in self._parts if part.receiver is not None]

    def _plan(self, step: int) -> StepPlan:
        with self._events.span("plan", step):
            return self._context.plans.get(step)

    def _begin(self, step: int) -> None:
        """Begin a step: the earlier ones are complete.

        Raises:
            Exception: Its work ahead has failed.
        """
        self._step = step
        if self._encoder is not None:
            self._encoder.version = step
        self._profiler.begin_step(step)
        if self._failed is not None and self._failed[0] == step:
            raise self._failed[1]

    def _execute_in_turn(self, action: Action) -> None:
        """Execute an action; what fails in a later step is raised once that step begins.

        Other ranks still need this one for the steps before. Further work ahead is left out.
        """
        is_ahead = action.step > self._step
        if is_ahead and self._failed is not None:
            return
        try:
            self._execute(action)
        except Exception as error:
            if not is_ahead:
                raise
            self._failed = action.step, error

    def _execute(self, action: Action) -> None:
        handler = self._handlers[action.kind, action.module]
        # The checkpoint of a run that is stopped follows the end of its last step.
        is_last = self._last is not None and self._last.step == action.step
        plan = self._last if is_last else self._context.plans.get(action.step)
        assert plan is not None
        if action.kind in _PAUSED:
            self._delays.pause()
        self._events.begin_action(action)
        try:
            with self._profiler.named(action):
                handler(plan, action)
        except RuntimeError as error:
            if (explained := self._explained(action, error)) is not None:
                raise explained from error
            raise
        finally:
            self._events.end(last=action.last)

    def _is_abandoned(self, action: Action) -> bool:
        """Whether the run ends behind this action, as no encoder rank is there."""
        if action.kind == "exchange":
            return self.update.is_abandoned
        return action.kind == "forget" and self._evaluations.is_abandoned

    def _abandon(self) -> Iterator[Action]:
        """End the run with a checkpoint of the last step that is complete."""
        for planner in (self._planner, self._eval_planner):
            if planner is not None:
                planner.stop()
        if self._last is not None and not self._template.saves(self._last.step):
            action = Action(self._last.step, "checkpoint")
            yield action
            self._execute(action)

    def _resize(self, plan: StepPlan, action: Action) -> None:
        """Make the segments large enough for a plan, and let another one be planned."""
        self._reserve(self._context.segments.sizes_for(plan, self._sizes))
        planner = self._planner if plan.kind == "train" else self._eval_planner
        if planner is not None and action.module == "backbone":
            planner.step_started()

    def _reserve(self, sizes: SpaceNeed) -> None:
        if self._encoder is not None:
            self._encoder.sender.reserve(sizes.activation)
        if self._backbone is not None:
            self._backbone.sender.reserve(sizes.gradient)
        self._sizes = sizes

    def _exchange(self, plan: StepPlan, action: Action) -> None:
        """Agree on a step, whose rows are complete."""
        self._confirm()
        self.update.exchange(plan, action)

    def _confirm(self) -> None:
        for receiver in self._receivers:
            receiver.confirm()

    def _evaluate(self, plan: StepPlan, action: Action) -> None:
        try:
            result = self._evaluations.run([part.module.module for part in self._parts])
        except PlanError:
            # All ranks raise it here. The step itself is complete.
            self._checkpoint(plan, action)
            self._forget(plan, action)
            raise
        self.update.restart()
        if self._evaluated is not None:
            self._evaluated(plan.step, result)
        self._eval_loss = None if result is None else result.loss

    def _checkpoint(self, plan: StepPlan, _: Action) -> None:
        self._checkpoints.save(plan, self._eval_loss)

    def _forget(self, plan: StepPlan, _: Action) -> None:
        """Drop what is kept of a step, or of a batch of an evaluation."""
        self._confirm()
        self._checkpoints.poll()
        self._context.plans.forget(plan.step)
        if self._encoder is not None:
            self._encoder.drop(plan)
        if plan.kind == "train":
            self._last, self._eval_loss = plan, None
            record_memory(self._events, self._context.world.device, step=plan.step)
            self._begin(plan.step + 1)
            self._events.step_ended()
