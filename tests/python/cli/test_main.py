from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from plans import decoupled, plan_file
from support import run_tree, write_tiny_data
from terminals import Terminal

from flowtrain import __version__
from flowtrain.cli import top
from flowtrain.cli.main import main
from flowtrain.config import load
from flowtrain.plan.plan_file import PlannedRun, dump_plan, model_digest
from flowtrain_core import PoolSpace, SystemCallError, cuda


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    write_tiny_data(folder / "data", samples=4)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run_tree(folder / "run", folder / "data")))
    return path


def test_a_printed_configuration_loads_to_the_same_run(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "optim.lr=5e-4", "--print-config"]) == 0
    copy = tmp_path / "printed.yaml"
    copy.write_text(capsys.readouterr().out)
    assert load(copy) == load(config, ["optim.lr=5e-4"])


def test_words_that_may_be_left_out_are_not_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2
    assert capsys.readouterr().err.endswith("arguments are required: config\n")


def test_overrides_may_stand_behind_an_option(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "train.steps=7", "--print-config", "optim.lr=5e-4"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["train"]["steps"], printed["optim"]["lr"]) == (7, 5e-4)
    for others in (["optim"], ["--lr=1"], ["optim.lr=1", "--lr"]):
        assert main(["train", str(config), "--print-config", *others]) == 2
        assert f"unrecognized arguments: {others[-1]}" in capsys.readouterr().err
    assert main(["clean", "optim.lr=1"]) == 2


def test_ctrl_c_ends_a_command_with_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("flowtrain.train.export.export", interrupted)
    assert main(["export", str(config.parent)]) == 130
    assert capsys.readouterr().err == "flowtrain: interrupted\n"
    monkeypatch.setattr(top, "inspect", interrupted)
    assert main(["top", "pool", "--json"]) == 130
    assert capsys.readouterr().err == ""


# A command that has a temporary folder, as those have that start processes.
COMMAND = """
import atexit, os, sys, tempfile, time
from flowtrain.cli import clean
from flowtrain.cli.main import command

def say(text):
    os.write(1, f"{text}\\n".encode())

def run(given):
    with tempfile.TemporaryDirectory() as folder:
        try:
            say(folder)
            while True:  # Python overlooks a signal that comes just before a sleep.
                time.sleep(0.05)
        finally:
            say("ends")
            time.sleep(0.2)

def at_exit():
    say("exits")
    time.sleep(0.2)

atexit.register(at_exit)  # As torch does.
clean.run = run
sys.argv[1:] = ["clean"]
sys.exit(command())
"""


@pytest.mark.limit(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_gets_signals_again_and_again_leaves_nothing_and_no_traceback(
    number: signal.Signals,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.exists()
        process.send_signal(number)
        for line in ("ends\n", "exits\n"):
            assert process.stdout.readline() == line
            process.send_signal(number)
        _, errors = process.communicate()
    # A shell shows both as 128 + number.
    assert process.returncode in (128 + number, -number)
    assert errors == ("flowtrain: interrupted\n" if number == signal.SIGINT else "")
    assert not folder.exists()


def test_a_run_takes_the_layout_of_a_plan(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load(config)
    path = tmp_path / "plan.json"
    digest = model_digest(run.model.folder)
    path.write_text(dump_plan(plan_file(decoupled(2, 1), digest, PlannedRun.of(run))))
    options = ["--plan", str(path), "--print-config"]
    assert main(["train", str(config), *options]) == 2
    assert "the plan is for flow.encoder_ranks=2 and" in capsys.readouterr().err
    open_layout = ["flow.encoder_ranks=null", "flow.backbone_ranks=null"]
    assert main(["train", str(config), *open_layout, *options]) == 0
    flow = yaml.safe_load(capsys.readouterr().out)["flow"]
    assert (flow["encoder_ranks"], flow["backbone_ranks"]) == (2, 1)


def test_a_run_succeeds_although_the_reader_of_its_summary_has_gone(
    config: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flowtrain.train.launch.run.train", lambda *_, **__: {"steps": 4})
    ours, theirs = os.pipe()
    os.close(ours)
    # The end of the block flushes, as the end of a process does.
    with os.fdopen(theirs, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["train", str(config)]) == 0
    path = config.parent / "run" / "summary.json"
    said = f"standard output: Broken pipe; the summary is in {path}\n"
    assert capfd.readouterr().err == said


SUMMARY = {
    "steps": 1200,
    "loss": 0.25,
    "eval_loss": 0.5,
    "best_eval_loss": 0.375,
    "best_steps": 1000,
    "tokens_per_s": 12345.6,
    "mfu": None,  # A rank without a known peak has none.
    "seconds": 3725.4,
}


def test_a_run_ends_with_text_on_a_terminal_and_with_json_if_that_is_wanted(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowtrain.train.launch.run.train", lambda *_, **__: SUMMARY)
    shown = []
    for options in ([], ["--json"]):
        terminal = Terminal()
        with os.fdopen(os.dup(terminal.theirs), "w") as output:
            monkeypatch.setattr(sys, "stdout", output)
            assert main(["train", str(config), *options]) == 0
        shown.append(terminal.shown().replace("\r\n", "\n"))
    run = config.parent / "run"
    assert shown[0].splitlines() == [
        "1,200 steps in 1:02:05: loss 0.2500, loss on held-out samples 0.5000, 12,346 tokens/s",
        "lowest loss on held-out samples: 0.3750 after 1,000 steps; to write that model: "
        f"flowtrain export {run} --best",
        f"the model is in {run}/final; to look at the run: flowtrain report {run}",
    ]
    assert json.loads(shown[1]) == SUMMARY


def test_a_run_goes_on_although_its_terminal_was_closed(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: object, **__: object) -> dict[str, int]:
        print("flowtrain: the layout", file=sys.stderr)
        return {"steps": 4}

    monkeypatch.setattr("flowtrain.train.launch.run.train", train)
    ours, theirs = os.openpty()
    os.close(ours)
    with os.fdopen(theirs, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        monkeypatch.setattr(sys, "stderr", closed)
        assert main(["train", str(config)]) == 0
        assert main(["train", str(config), "optim.rate=1"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["train", "{config}", "--print-config"], 0),
        (["data", "show", "{config}", "--index", "0", "1"], 0),
        (["data", "check", "{config}", "train.microbatch_tokens=8", "--workers", "1"], 1),
    ],
)
def test_output_to_a_closed_pipe_is_no_error(
    config: Path,
    arguments: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w", buffering=256) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main([argument.format(config=config) for argument in arguments]) == code
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["clean"],
        ["data", "show", "{config}", "--index", "0", "1"],
        ["train", "{config}", "--print-config"],
    ],
)
def test_a_full_disk_is_an_error_of_standard_output(
    config: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # The end of the block flushes, as the end of a process does.
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([argument.format(config=config) for argument in arguments]) == 1
    assert capfd.readouterr().err == "flowtrain: standard output: No space left on device\n"


def test_a_summary_on_a_full_disk_is_an_error_that_names_its_file(
    config: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flowtrain.train.launch.run.train", lambda *_, **__: {"steps": 4})
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["train", str(config)]) == 1
    path = config.parent / "run" / "summary.json"
    said = f"standard output: No space left on device; the summary is in {path}\n"
    assert capfd.readouterr().err == said


def test_another_error_takes_precedence_over_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> NoReturn:
        print("unwritten")
        raise SystemCallError("no such pool")

    monkeypatch.setattr(top, "list_pools", fail)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["top"]) == 2
    assert capfd.readouterr().err == "flowtrain: no such pool\n"


def test_a_sample_is_shown_with_its_cost(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", str(config), "--index", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    [grid] = shown["grids"]
    assert shown["tokens"]["images"] == [grid[1] * grid[2] // 4]
    assert shown["tokens"]["all"] == len(shown["input_ids"]) == len(shown["labels"])
    assert all(flops > 0 for flops in shown["flops"].values())


def test_an_error_is_one_line_and_exit_code_two(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "flow.encoder_rank=2"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "flow.encoder_rank: there is no such field; did you mean encoder_ranks?" in said


def test_an_error_of_the_core_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lack_memory() -> None:  # Also a MemoryError of Python.
        raise PoolSpace("no memory")

    monkeypatch.setattr(top, "list_pools", lack_memory)
    assert main(["top"]) == 1
    assert capsys.readouterr().err == "flowtrain: no memory\n"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--listen", "127.0.0.1:0"), "no run or loop has begun there within --timeout=0.1 s"),
        (("--join", "127.0.0.1:1"), "no host of a run has answered there within --timeout=0.1 s"),
    ],
)
def test_a_host_waits_for_a_run_as_long_as_it_is_told(
    option: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    options = [*option, "--token", str(token), "--timeout", "0.1"]
    assert main(["host", str(tmp_path / "later"), *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--listen", "127.0.0.1:{used}"), "Address already in use; give an address of this host"),
        (("--listen", "203.0.113.1:0"), "Cannot assign requested address; give an address of this"),
        (("--listen", "0.0.0.0:0"), "or give that one with --interface"),
        (("--listen", "[::]:0"), "or give that one with --interface"),
        (
            ("--join", "127.0.0.1:1", "--interface", "203.0.113.1"),
            "--interface 203.0.113.1: Cannot",
        ),
        (("--join", "127.0.0.1:1"), "give the folder of the run, {run}, in place of"),
    ],
)
def test_a_host_with_a_wrong_place_is_told_so_at_once(
    option: tuple[str, ...],
    said: str,
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    run = load(config).run
    place = run if "--interface" in option else config
    with socket.create_server(("127.0.0.1", 0)) as used:
        given = [word.format(used=used.getsockname()[1]) for word in option]
        assert main(["host", str(place), *given, "--token", str(token)]) == 2
    assert said.format(run=run) in capsys.readouterr().err
    assert not run.exists()


def test_the_doctor_finds_no_fault_on_a_test_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["transformers"]["state"] == "ok"
    assert found["flowtrain_core"]["state"] == "ok"
    assert found["edge"]["text"].startswith("takes shared memory: ")
    assert (found["cuda"]["state"] == "ok") == cuda.available()
    assert found["cuda"]["text"] == cuda.why_not() or cuda.available()


def test_the_doctor_reports_a_failed_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object) -> NoReturn:
        raise SystemCallError("/dev/shm: not a folder of this user")

    monkeypatch.setattr("flowtrain.doctor.left_pools", refuse)
    monkeypatch.setattr("shutil.disk_usage", refuse)
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    for name in ("pools", "shared memory"):
        assert found[name] == {"state": "bad", "text": "/dev/shm: not a folder of this user"}


def test_the_doctor_reports_a_torch_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudnn.so.9: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["gpu"]
    text = "torch cannot be imported (libcudnn.so.9: cannot open); reinstall torch"
    assert found == {"state": "bad", "text": text}


def test_the_doctor_names_a_torchvision_built_for_another_torch(tmp_path: Path) -> None:
    package, info = tmp_path / "torchvision", tmp_path / "torchvision-0.28.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('no operator torchvision::nms')")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    paths = [str(tmp_path), *sys.path]
    done = subprocess.run(
        [sys.executable, "-m", "flowtrain", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["torchvision"]
    assert found["state"] == "bad"
    assert found["text"].startswith("0.28.0 cannot be imported (no operator torchvision::nms)")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"flowtrain {__version__}\n"
