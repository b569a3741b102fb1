"""What a host checks before its encoder ranks join a run of another one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import run_tree

from flowtrain.config import ConfigError, from_dict
from flowtrain.config.load import dump, load
from flowtrain.hosts import HostError, handshake
from flowtrain.train.control.job import HOST_LABEL
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.host_files import write_files
from flowtrain.train.launch.other_hosts import Endpoint, job_facts
from flowtrain.train.launch.other_hosts.ends import until_lost
from flowtrain.train.launch.other_hosts.traffic import Stalls
from flowtrain.train.state.resume import FINGERPRINT, fingerprint
from flowtrain.train.state.run_folder import CONFIG
from flowtrain.train.state.traffic import HostTraffic, PeerTraffic
from flowtrain_core import Pool

HOST = """
import sys, time
from flowtrain_core import Pool
pool = Pool.open(sys.argv[1], label="host", timeout_s=20)
print("joined", flush=True)
time.sleep(60)
"""


def test_other_models_and_data_are_refused_by_name(tmp_path: Path, data: Path) -> None:
    config = from_dict(run_tree(tmp_path / "run", data))
    files = {CONFIG: dump(config), FINGERPRINT: json.dumps(fingerprint(config))}
    there = tmp_path / "there"
    write_files(there, files)
    assert load(there / CONFIG).run == there
    recorded = json.loads(files[FINGERPRINT])
    changed = next(name for name in recorded["files"] if name.endswith(" of the model"))
    recorded["files"] |= {changed: "0", "data.path": "0"}
    with pytest.raises(ConfigError, match="files of this host are not those of the run") as error:
        write_files(there, files | {FINGERPRINT: json.dumps(recorded)})
    assert changed in str(error.value) and "data.path" in str(error.value)


def traffic(**stalled_s: float) -> HostTraffic:
    none: dict[str, Any] = dict.fromkeys(PeerTraffic.__slots__, 0)
    peers = [
        PeerTraffic(**none | {"peer": peer, "connected": True, "stalled_s": for_s})
        for peer, for_s in stalled_s.items()
    ]
    return HostTraffic(host="a", path="", peers=tuple(peers))


def test_a_peer_that_takes_no_payloads_is_told_once_per_stall() -> None:
    stalls = Stalls()
    assert stalls.new(traffic(b=9.9, c=0.0)) == []
    [said] = stalls.new(traffic(b=10.9, c=0.0))
    assert said.startswith("host b has taken no payload for 11 s: it is stopped, or the network ")
    assert stalls.new(traffic(b=11.9, c=0.0)) == []
    [said] = stalls.new(traffic(b=0.0, c=10.1))
    assert said.startswith("host c ")
    assert len(stalls.new(traffic(b=12.0, c=11.1))) == 1


@pytest.mark.parametrize(
    ("of_run", "said"),
    [
        (True, "the host of the run is lost, .* that with the YAML file with --resume$"),
        (False, r"the host of the loop is lost, .* connect\(..., resume=True\), and the same com"),
    ],
)
def test_the_loss_of_the_host_of_a_job_tells_how_to_go_on(of_run: bool, said: str) -> None:
    with Pool.create(f"test-{os.getpid()}", rings=["r"], label=HOST_LABEL) as pool:
        command = [sys.executable, "-c", HOST, pool.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
            assert host.stdout is not None
            assert host.stdout.readline() == "joined\n"
            host.kill()
            with pytest.raises(RunFailed, match=said):
                asyncio.run(until_lost(pool, of_run=of_run))


def test_a_host_that_does_not_answer_at_first_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(handshake, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(job_facts, "_RETRY_S", 0.01)
    tries, token = 0, b"0123456789abcdef"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            while await reader.read(100):
                pass
        else:
            monkeypatch.setattr(handshake, "TIMEOUT_S", 30.0)
            with suppress(HostError):
                await handshake.admit(reader, writer, token, to.identity("n"))
        writer.close()

    async def reached() -> str:
        nonlocal to
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        to = replace(to, port=server.sockets[0].getsockname()[1])
        async with asyncio.timeout(30):
            (_, writer), session = await job_facts._reached(to)
            writer.close()
            await writer.wait_closed()
            with pytest.raises(HostError, match="is the token the same"):
                await job_facts._reached(replace(to, token=b"another token of 16"))
        server.close()
        await server.wait_closed()
        return session.peer.host

    to = Endpoint(name="b", host="127.0.0.1", port=0, interface="", token=token)
    assert asyncio.run(reached()) == "b"
    assert "(no answer within 0.1 s; " in capsys.readouterr().err
