"""Ranks of a run on other hosts: the two sides of `flowtrain host`, without torch."""

from flowtrain.train.launch.other_hosts.endpoint import Endpoint
from flowtrain.train.launch.other_hosts.join import join_host
from flowtrain.train.launch.other_hosts.listen import host_run

__all__ = ["Endpoint", "host_run", "join_host"]
