"""Table of the hosts of a run, and what they exchange."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from flowtrain.observe.top import bytes_text
from flowtrain.train.state.traffic import PeerTraffic, read_traffic

_MIN_STALL_S = 1.0


def hosts_table(run: Path) -> Table | None:
    """Links between the hosts of a run; None if it is on one host.

    Args:
        run: Folder of the run.

    Raises:
        RunFileError: A file of the folder is damaged.
    """
    hosts = read_traffic(run)
    if not hosts:
        return None
    table = Table("host", "peer", "link", "sent", "received", "path", box=None)
    for host in hosts:
        for peer in host.peers:
            table.add_row(
                Text(host.host),
                Text(peer.peer),
                _state_of(peer),
                sent_text(peer),
                f"{peer.received_items:,} items, {bytes_text(peer.received_bytes)}",
                Text(host.path),
            )
    return table


def sent_text(peer: PeerTraffic) -> str:
    """Items and bytes that a host has sent to a peer, with those of a device and those lost."""
    text = f"{peer.sent_items:,} items, {bytes_text(peer.sent_bytes)}"
    if peer.staged_items:
        text += f", {peer.staged_items:,} of a device by page-locked memory"
    if peer.lost_items:
        text += f", {peer.lost_items:,} lost with a producer"
    return text


def _state_of(peer: PeerTraffic) -> Text:
    if not peer.connected:
        return Text("none", style="bold red")
    if peer.stalled_s >= _MIN_STALL_S:
        return Text(f"stalled for {peer.stalled_s:.0f} s", style="yellow")
    return Text("up", style="green")
