from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from flowtrain.config import ConfigError
from flowtrain.cost.timing import LINEAR
from flowtrain.plan.cluster import Cluster, parse_cluster
from flowtrain.plan.pools import pools_of


def test_groups_of_a_text_have_their_gpus_and_links() -> None:
    cluster = parse_cluster("16x8xh100 + 4x4xA100")
    assert str(cluster) == "16x8xH100+4x4xA100-80GB"
    assert cluster.gpus == 144
    assert cluster.pools == {"H100": 128, "A100-80GB": 16}
    fast, slow = cluster.groups
    assert slow.topology.devices_per_node == 4
    assert fast.topology.inside.bytes_per_s == pytest.approx(18 * 20.6e9)
    # Half the rate of the data sheet, which adds both directions.
    assert fast.topology.inside.bytes_per_s < 450e9


def test_modules_are_joined_by_the_slowest_link_that_may_lie_between_them() -> None:
    node, nodes, types = map(parse_cluster, ("1x8xH100", "2x8xH100", "1x8xH100+1x4xA100"))
    assert node.between_modules == node.groups[0].topology.inside
    assert nodes.between_modules == nodes.groups[0].topology.between
    assert types.between_modules == types.groups[1].topology.between
    assert all(
        pool.between_modules == types.between_modules for pool in pools_of(types, "bfloat16")
    )


def test_part_of_a_node_and_whole_nodes_are_groups_too() -> None:
    (group,) = parse_cluster("32x8xH200").groups
    assert str(group.with_gpus(2)) == "1x2xH200"
    assert str(group.with_gpus(64)) == "8x8xH200"
    with pytest.raises(ValueError, match="gpus=12: nodes of H200 have 8 GPUs; .* a multiple"):
        group.with_gpus(12)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2x8xH101", "GPU 'H101' is not known; did you mean H100\\? known are A100-40GB, .*B200"),
        ("2x8xtoaster", "GPU 'toaster' is not known; known are A100-40GB, .*; describe another"),
        ("2x8xH100-PCIe", "GPU 'H100-PCIe': the links of its nodes differ .* cluster file"),
        ("0x8xH100", "cluster '0x8xH100': nodes=0: it must be at least 1"),
        ("-2x8xH100", "nodes=-2: it must be at least 1"),
        ("2x0xH100", "GPUs of a node=0: it must be from 1 to 8 for H100"),
        ("2x16xH100", "GPUs of a node=16: it must be from 1 to 8"),
        ("99999x8xH100", "799992 GPUs are more than the 65536 that are planned for"),
        ("16xH100", "'16xH100' has another form than NODESxGPUSxTYPE, such as 32x8xH100"),
        ("2x8xH100+", "cluster '2x8xH100\\+': '' has another form"),
        ("2x8xH100+1x4xH100", "H100 is in more than one group; put equal nodes into one group"),
    ],
)
def test_an_unusable_text_is_an_error_that_names_the_part(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_cluster(text)


def test_a_cluster_without_groups_is_an_error() -> None:
    with pytest.raises(ValueError, match="groups=\\[\\]: give at least one"):
        Cluster(groups=())


FILE = """
gpus:
  - name: L40S
    memory_gib: 45
    bf16_tflops: 362
    hbm_gb_per_s: 864
    attention_efficiency: 0.3
    source: data sheet
groups:
  - nodes: 4
    gpus_per_node: 2
    gpu: L40S
    inside: {latency_us: 6, gb_per_s: 20}
    between: {latency_us: 15, gb_per_s: 12}
    source: nccl-tests
  - {nodes: 2, gpus_per_node: 8, gpu: H100, between: {latency_us: 9, gb_per_s: 25}, source: ours}
"""


def test_a_file_describes_other_accelerators_and_links(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    cluster = parse_cluster(str(path))
    assert str(cluster) == "4x2xL40S+2x8xH100"
    own, known = cluster.groups
    assert (own.gpu.memory_bytes, own.gpu.bf16_flops) == (45 << 30, 362e12)
    # The share of the peak that is reached is assumed where the file does not say it.
    assert (own.gpu.linear, own.gpu.attention.maximum) == (LINEAR, 0.3)
    assert own.topology.between.seconds(12e9) == pytest.approx(1 + 15e-6)
    assert known.topology.between.bytes_per_s == 25e9
    # What the file leaves out is that of the preset, and the source says so.
    assert known.topology.inside == parse_cluster("1x8xH100").groups[0].topology.inside
    assert known.source.startswith("ours; otherwise inside: 18 NVLinks")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nodes: 4", "node: 4", "groups.0.node: there is no such field; did you mean nodes?"),
        ("nodes: 4", "nodes: 0", "groups.nodes=0: it must be greater than 0"),
        ("nodes: 4", "nodes: many", "groups.0.nodes='many': Input should be a valid integer"),
        ("latency_us: 6,", "", "groups.0.inside.latency_us is missing; set it"),
        ("latency_us: 6", "latncy_us: 6", "groups.0.inside.latncy_us: there is no such field"),
        ("gb_per_s: 20", "gb_per_s: 0", "bytes_per_s=0.0 must be above 0"),
        ("gpu: H100", "gpu: H101", "GPU 'H101' is not known; did you mean H100?"),
        ("name: L40S", "name: H200", "gpus: H200 is described twice, or known already"),
        ("    source: nccl-tests\n", "", "groups: L40S: inside and between need a source"),
        ("    inside: {latency_us: 6, gb_per_s: 20}\n", "", "L40S: inside and between are missing"),
        ("memory_gib: 45", "memory_gib: -1", "gpus.memory_gib=-1.0: it must be greater than 0"),
        ("efficiency: 0.3", "efficiency: 30", "L40S: attention_efficiency=30.0 must be above 0"),
    ],
)
def test_an_unusable_file_is_an_error_that_names_the_field(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        parse_cluster(str(path))
    assert str(caught.value).startswith(f"{path}: ") and said in str(caught.value)


def pretend(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """Let pynvml see devices of these names."""
    library = ModuleType("pynvml")
    vars(library).update(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda number: names[number],
        nvmlDeviceGetMemoryInfo=lambda number: SimpleNamespace(total=(70 + number) << 30),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)


def test_the_gpus_of_this_machine_are_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, ["NVIDIA H100 80GB HBM3"] * 4)
    (group,) = parse_cluster("local").groups
    assert str(group) == "1x4xH100"
    # A share of a GPU has less memory than the whole one.
    assert group.gpu.memory_bytes == 70 << 30


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "no GPU is seen"),
        (["NVIDIA H100 80GB HBM3", "NVIDIA H200"], "the GPUs differ"),
        (["NVIDIA L4"], "'NVIDIA L4' is not a known type; describe the cluster"),
        (["NVIDIA H100 PCIe"], "the links of its nodes differ"),
    ],
)
def test_a_machine_that_no_preset_describes_is_an_error(
    names: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, names)
    with pytest.raises(ValueError, match=said):
        parse_cluster("local")


def test_without_nvidia_ml_py_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ValueError, match="pip install nvidia-ml-py"):
        parse_cluster("local")
