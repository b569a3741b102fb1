"""The Hugging Face Trainer with an encoder in ranks of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flowtrain.config.checks import ConfigError
from flowtrain.config.data import DataConfig
from flowtrain.config.tree import build
from flowtrain.data import VlmSamples
from flowtrain.integrations.arguments import unplanned, wrong
from flowtrain.integrations.decoupled import Decoupled
from flowtrain.integrations.token_loss import token_loss
from flowtrain.train.connect.run import Samples, fields_of

if TYPE_CHECKING:
    from transformers import Trainer

_REPLACED = (
    "train",
    "training_step",
    "evaluate",
    "save_model",
    "get_train_dataloader",
    "get_eval_dataloader",
    "get_test_dataloader",
)


def decouple(
    trainer: Trainer,
    job: Path | str,
    *,
    max_tokens: int,
    dataset: Samples | None = None,
    held_out: Samples | None = None,
    mode: Literal["strict", "frozen"] = "strict",
    **options: Any,
) -> None:
    """Make a Trainer train with an encoder that runs apart, in ranks of its own.

        samples = VlmSamples(folder, "train.jsonl")
        trainer = Trainer(model, args, train_dataset=samples, data_collator=VlmCollator(folder))
        decouple(trainer, "job", max_tokens=8192)
        trainer.train()
        trainer.save_model("out")

    The encoder ranks are other processes of this host, `flowtrain encoder --job job`, as for
    `flowtrain.connect`. The Trainer keeps its arguments, optimizer, schedule, callbacks, logs and
    checkpoints, and resumes from these. Its `train` takes the vision tower out of the model.

    A step has as many samples as without this: `per_device_train_batch_size` for each of
    `gradient_accumulation_steps` batches of each rank. `max_tokens` decides how many microbatches
    they are packed into. The loss is the mean over the target tokens of the step. Epochs follow
    each other without a gap: no step is shorter than the others.

    Evaluations, as often as `eval_strategy` says, give the loss, the mean over all target tokens.

    `save_model` writes the whole model after the last step. Checkpoints of the Trainer have the
    model without its tower, and resume together with those of the job, which have all weights.

    Args:
        trainer: A `transformers.Trainer` or TRL's `SFTTrainer`, before it trains.
        job: Folder of the job.
        max_tokens: Maximum tokens of a microbatch, and so of a sample.
        dataset: The samples, as for `Flow.steps`, in the order that `train_sampling_strategy`
            says; None takes those of `train_dataset`, if that is a `VlmSamples`. They are read by
            `dataloader_num_workers` processes of each rank with the encoder; 0 takes one.
        held_out: The samples of evaluations, as for `Flow.steps`; None takes those of
            `eval_dataset`, if that is a `VlmSamples`.
        mode: `strict` trains the encoder, `frozen` does not.
        **options: Further arguments of `flowtrain.connect`, such as `encoder_ranks`.

    Raises:
        ConfigError: An argument of the Trainer, or its train_dataset, cannot be used; `train`
            raises what `flowtrain.connect` and `Flow.steps` do.
        PackingError: The loss of the model is no mean over target tokens.
    """
    if owned := sorted(options.keys() & {"clip_norm", "save_every", "keep", "resume"}):
        raise ConfigError(f"decouple: {owned[0]} is for the arguments of the Trainer to say")
    reason = unplanned(trainer) or wrong(trainer, _rules(trainer))
    if reason is None and getattr(trainer, "model_init", None) is not None:
        reason = "model_init: the tower can be taken out of one model alone; give the Trainer that"
    if reason is None and (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
        reason = (
            "accelerator: DeepSpeed and FSDP are not supported in a Trainer; use DDP, or "
            "flowtrain.connect in a loop of your own, which takes FSDP2"
        )
    if reason is not None:
        raise ConfigError(reason)
    options |= {"mode": mode}
    data = _data(trainer, dataset, Path(job))
    evaluated = _evaluated(trainer, held_out)
    decoupled = Decoupled(trainer, Path(job), data, evaluated, max_tokens, options)
    _normalize_loss(trainer)
    trainer.remove_callback(Decoupled)  # That of an earlier call.
    trainer.add_callback(decoupled)
    for name in _REPLACED:
        setattr(trainer, name, getattr(decoupled, name))


def _rules(trainer: Trainer) -> dict[str, tuple[bool, str]]:
    """Arguments that cannot be used, and why."""
    args = trainer.args
    whole = "the Trainer has no whole model while it trains"
    return {
        "fp16": (args.fp16, "losses cannot be scaled for both modules; use bf16"),
        "eval_on_start": (
            args.eval_on_start,
            "the first evaluation follows a step; leave it out, and evaluate before train()",
        ),
        "load_best_model_at_end": (
            args.load_best_model_at_end,
            f"{whole}; leave it out, and write the model of a checkpoint by flowtrain export",
        ),
        "push_to_hub": (args.push_to_hub, f"{whole}; push what save_model has written"),
        "save_only_model": (args.save_only_model, f"{whole}; leave it out, and call save_model"),
        "enable_jit_checkpoint": (
            args.enable_jit_checkpoint,
            "the job has checkpoints of planned steps alone; leave it out",
        ),
        "ignore_data_skip": (args.ignore_data_skip, "the flow goes on where it was; leave it out"),
    }


def _data(trainer: Trainer, dataset: Samples | None, job: Path) -> DataConfig:
    """The samples, in the order that the Trainer says."""
    given = trainer.train_dataset
    if dataset is None and isinstance(given, VlmSamples):
        dataset = given
    if dataset is None:
        raise ConfigError(
            f"train_dataset ({type(given).__name__}): encoder ranks cannot read it; give "
            "decouple(..., dataset=) the file or folder of the samples or their section `data`, or "
            "make it a flowtrain.data.VlmSamples"
        )
    args = trainer.args
    fields = fields_of(dataset, job) | {"shuffle": args.train_sampling_strategy == "random"}
    if args.dataloader_num_workers:
        fields["workers"] = args.dataloader_num_workers
    return build(DataConfig, fields, source="data")


def _evaluated(trainer: Trainer, held_out: Samples | None) -> Samples | None:
    """The samples of evaluations; None without any."""
    if trainer.args.eval_strategy == "no":
        if held_out is not None:
            raise ConfigError(
                "held_out: args.eval_strategy is 'no', and nothing would be evaluated; set "
                "args.eval_strategy, or leave held_out out"
            )
        return None
    given = trainer.eval_dataset
    if held_out is None and isinstance(given, VlmSamples):
        held_out = given
    if held_out is None:
        raise ConfigError(
            f"eval_dataset ({type(given).__name__}): encoder ranks cannot read it; give "
            "decouple(..., held_out=) the file or folder of the samples, make it a "
            "flowtrain.data.VlmSamples, or leave eval_strategy out"
        )
    for name in ("compute_metrics", "preprocess_logits_for_metrics"):
        if getattr(trainer, name) is not None:
            raise ConfigError(
                f"{name}: evaluations while a decoupled Trainer trains give the loss alone; leave "
                "it out, and compute metrics with the model that save_model has written"
            )
    return held_out


def _normalize_loss(trainer: Trainer) -> None:
    """Have the losses of microbatches divided by the target tokens of their step."""
    from transformers import Trainer

    if trainer.compute_loss_func is not None:
        return
    owner = next(kind for kind in type(trainer).__mro__ if "compute_loss" in vars(kind))
    if owner is Trainer:
        if not trainer.model_accepts_loss_kwargs:
            trainer.compute_loss_func = token_loss(trainer)
    elif owner.__module__ == "trl.trainer.sft_trainer":
        trainer.loss_is_scaled_for_ga = True
    elif not trainer.loss_is_scaled_for_ga:
        raise ConfigError(
            f"{owner.__name__}.compute_loss: its loss has to be a sum over target tokens, divided "
            "by num_items_in_batch; if it is, set trainer.loss_is_scaled_for_ga = True"
        )
