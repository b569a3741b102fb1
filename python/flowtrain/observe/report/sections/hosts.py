"""Traffic between the hosts of a run."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain.observe.hosts import sent_text
from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import of, said_of
from flowtrain.observe.top import bytes_text
from flowtrain.pages.parts import Figure, Section, Table
from flowtrain.train.state.traffic import read_traffic

_ABOUT = (
    "Items that the gateway of each host has sent to the others and received, since it started. "
    "The path says how they went, and from which address."
)


def hosts(runs: Sequence[ReportedRun]) -> Section:
    """Traffic between hosts, of runs that have several."""
    findings, figures = [], []
    for run in runs:
        rows = [
            (
                f"{host.host} and {peer.peer}",
                sent_text(peer),
                f"{peer.received_items:,} items, {bytes_text(peer.received_bytes)}",
                host.path,
            )
            for host in read_traffic(run.folder)
            for peer in host.peers
        ]
        if not rows:
            continue
        count = len({name for pair, *_ in rows for name in pair.split(" and ")})
        findings.append(said_of(run, runs, f"the run was on {count} hosts."))
        table = Table(("hosts", "sent", "received", "path"), rows)
        figures.append(Figure(f"Between hosts{of(run, runs)}", _ABOUT, table))
    return Section("Hosts", "docs/hosts.md", findings, figures)
