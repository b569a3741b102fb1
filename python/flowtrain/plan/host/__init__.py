"""The layout of a run on one host, decided before it starts."""

from flowtrain.plan.host.choice import Choice
from flowtrain.plan.host.cores import choose_on_cores
from flowtrain.plan.host.gpus import choose_on_gpus

__all__ = ["Choice", "choose_on_cores", "choose_on_gpus"]
