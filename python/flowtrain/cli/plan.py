"""`flowtrain plan`: the best layout of a model on a cluster, and why."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from flowtrain import progress
from flowtrain.cli.overrides import add_overrides
from flowtrain.cli.plan_export import add_export_options, check_export, export, export_file

_EPILOG = """
examples:
  flowtrain plan --model FOLDER --cluster 32x8xH100 --workload native
  flowtrain plan run.yaml --cluster 1x8xH100 --only-run --out plan.json
  flowtrain train run.yaml --plan plan.json
  flowtrain plan --model FOLDER --cluster 1x8xH100 --workload native --export torchtitan
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help=__doc__,
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_overrides(
        parser,
        metavar="run.yaml | a.b=value",
        help="the run that is planned, and dotted overrides",
        files=True,
    )
    parser.add_argument("--model", type=Path, help="Hugging Face folder; config.json is enough")
    parser.add_argument(
        "--cluster",
        help="NODESxGPUSxTYPE, several joined by +; or a YAML file; or local (not with --from)",
    )
    parser.add_argument(
        "--workload",
        help="a preset, or a file of lengths, as for flowtrain pack (default: the sizes of the "
        "samples of run.yaml, from flowtrain data check)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of a preset")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="measured times, from flowtrain profile"
    )
    parser.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="PART=RANK",
        help="train LoRA adapters of this rank in place of the weights of a part, such as "
        "backbone=16, beside those of run.yaml; may be repeated",
    )
    parser.add_argument(
        "--offload",
        action="store_true",
        help="keep the states of sharded modules in host memory, as optim.offload does",
    )
    parser.add_argument(
        "--cache-hits",
        type=float,
        metavar="SHARE",
        help="share of the images, such as .9, whose features are in a cache and are not encoded "
        "(default: that which is expected of flow.cache of run.yaml)",
    )
    parser.add_argument(
        "--fix",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="search only plans with this value, such as backbone.tp=2; may be repeated",
    )
    parser.add_argument(
        "--only-run", action="store_true", help="search only layouts that FlowTrain runs"
    )
    parser.add_argument(
        "--check", type=Path, metavar="run.yaml", help="what the layout of this run would cost"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.html", help="write a page with charts to this file"
    )
    parser.add_argument(
        "--gpus", metavar="LOW..HIGH", help="the best plans of other numbers of GPUs too"
    )
    parser.add_argument(
        "--sensitivity",
        action="store_true",
        help="whether the plan stays the best if an assumed figure is lower or higher",
    )
    parser.add_argument(
        "--explain", action="store_true", help="say what every number means and rests on"
    )
    add_export_options(parser)
    parser.add_argument(
        "--gpu-hour",
        type=float,
        metavar="PRICE",
        help="price of an hour of a GPU, in any currency: the report says what 1e6 tokens, a step, "
        "and the steps of run.yaml cost",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--out", type=Path, metavar="plan.json", help="write the plan to this file")
    parser.set_defaults(run=run, extra="hf")


@progress.bar("reading the model and the samples")
def run(given: argparse.Namespace) -> int:
    from flowtrain.config.checks import check_outputs, require

    check_outputs(
        {"--out": given.out, "--plot": given.plot, "--export-out": given.export_out},
        [
            *(*given.overrides, given.workload, given.profile, given.check, given.cluster),
            *(given.plan, given.model and given.model / "config.json"),
        ],
    )
    check_export(given)
    if given.plan is not None:
        return export_file(given)
    require(
        given.cluster is not None,
        "--cluster: give the cluster that is planned for, such as 1x8xH100",
    )
    from flowtrain.data.sizes import read_sizes, size_digests
    from flowtrain.models.describe import describe
    from flowtrain.plan.export import exported_text, exported_tree
    from flowtrain.plan.plan_file import dump_plan
    from flowtrain.plan.report import answer_text, answer_tree, explain_text
    from flowtrain.plan.request import Request, Samples, answer_request

    answer, plan = answer_request(
        Request(
            words=given.overrides,
            model=given.model,
            cluster=given.cluster,
            workload=given.workload,
            seed=given.seed,
            profile=given.profile,
            fixed=given.fix,
            only_run=given.only_run,
            checked=given.check,
            budgets=given.gpus,
            sensitivity=given.sensitivity,
            lora=given.lora,
            offload=given.offload,
            export=given.export,
            gpu_hour=given.gpu_hour,
            cache_hits=given.cache_hits,
        ),
        lambda config, lora: describe(
            config.model.folder, projector_side=config.projector_side, lora=lora
        ),
        Samples(read_sizes, size_digests),
    )
    if given.out is not None:
        given.out.write_text(dump_plan(plan))
    exported = None if given.export is None else export(given, plan)
    if given.json:
        tree = answer_tree(answer)
        if exported is not None:
            tree["export"] = exported_tree(exported)
        print(json.dumps(tree))
    else:
        print(answer_text(answer), end="")
        if given.explain:
            print("\n" + explain_text(answer), end="")
        if exported is not None:
            print("\n" + exported_text(exported), end="")
    if given.plot is not None:
        from flowtrain.pages import write_page
        from flowtrain.plan.report import answer_page

        print(write_page(answer_page(answer), given.plot, option="--plot"), file=sys.stderr)
    return 0
