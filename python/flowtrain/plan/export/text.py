"""An exported plan for people, for bash, and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from flowtrain.plan.export.interface import Exported
from flowtrain.plan.report.words import num_gpus

_WIDTH = 100


def exported_text(exported: Exported) -> str:
    """The flags, and what is to be known of them."""
    lines = [f"{exported.title}: {exported.target.program} on {_gpus(exported)}"]
    lines += [f"  {name}={value}" for name, value in exported.flags.environment.items()]
    lines += [f"  {shlex.join(flag)}" for flag in exported.flags.flags]
    for title, items in _notes(exported):
        lines += ["", title, *_listed(items)]
    return "\n".join(lines) + "\n"


def exported_script(exported: Exported) -> str:
    """A file for `source` in bash, which sets the array `PLAN_FLAGS`."""
    target = exported.target
    lines = [
        f"# {exported.title}: flags of {target.program} for the plan of {exported.file.model}",
        f"# on {_gpus(exported)}, by flowtrain plan --export {target.name}.",
        '# source this file, and give "${PLAN_FLAGS[@]}" to the program behind its other options.',
    ]
    for title, items in _notes(exported):
        lines += ["#", f"# {title}", *(f"# {line}" for line in _listed(items))]
    lines += [f"export {name}={value}" for name, value in exported.flags.environment.items()]
    flags = [f"  {shlex.join(flag)}" for flag in exported.flags.flags]
    return "\n".join([*lines, "PLAN_FLAGS=(", *flags, ")"]) + "\n"


def exported_tree(exported: Exported) -> dict[str, Any]:
    """The same in plain types."""
    target, flags = exported.target, exported.flags
    return {
        "target": target.name,
        "version": target.version,
        "program": target.program,
        "gpus": exported.file.plan.gpus,
        "nodes": exported.file.nodes,
        "environment": dict(flags.environment),
        "flags": flags.words,
        "before": list(flags.before),
        "missing": list(flags.missing),
    }


def _gpus(exported: Exported) -> str:
    nodes = exported.file.nodes
    hosts = f"{nodes} nodes" if nodes > 1 else "1 node"
    return f"{num_gpus(exported.file.plan.gpus)} of {hosts}"


def _notes(exported: Exported) -> Iterator[tuple[str, Sequence[str]]]:
    yield "before it runs", exported.flags.before
    yield "without a counterpart", exported.flags.missing


def _listed(items: Sequence[str]) -> Iterator[str]:
    for item in items:
        yield from wrap(item, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
