"""Forked children of a process with handles, and threads that wait while their process ends."""

from __future__ import annotations

import os
import signal
import time

import pytest
from core.processes import Spawn

from flowtrain_core import Consumer, Pool, Producer


def test_a_child_forked_while_a_pool_is_opened_inherits_no_lock(name: str, spawn: Spawn) -> None:
    with Pool.create(name):
        parent = spawn(
            "import os, threading\n"
            "done = threading.Event()\n"
            "def reopen():\n"
            "    while not done.is_set(): Pool.open(sys.argv[1]).close()\n"
            "thread = threading.Thread(target=reopen); thread.start()\n"
            "def inherits():\n"
            "    for fd in os.listdir('/proc/self/fd'):\n"
            "        try: target = os.readlink('/proc/self/fd/' + fd)\n"
            "        except OSError: continue\n"
            "        if target.endswith('/control'): return True\n"
            "    return False\n"
            "count = 0\n"
            "for _ in range(200):\n"
            "    child = os.fork()\n"
            "    if child == 0: os._exit(inherits())\n"
            "    count += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
            "done.set(); thread.join(); print(count)",
            name,
        )
        assert parent.line() == "0"


def test_a_waiting_daemon_thread_does_not_abort_the_end_of_its_process(
    pool: Pool, spawn: Spawn
) -> None:
    for call in (
        "Consumer(pool).get()",
        "Producer(pool).lease((1 << 20,), 'uint8')",
        "pool.wait_dead(60)",
    ):
        # While the interpreter ends, another thread still gets the GIL for a while.
        ending = spawn(
            "import threading\n"
            "pool = Pool.open(sys.argv[1])\n"
            "held = [Producer(pool).lease((1 << 20,), 'uint8') for _ in range(2)]\n"
            "class Slow:\n"
            "    def __del__(self, sleep=time.sleep): sleep(0.4)\n"
            "slow = Slow()\n"
            f"threading.Thread(target=lambda: {call}, daemon=True).start()\n"
            "time.sleep(0.1)",
            pool.name,
        )
        assert ending.wait() == 0, call


@pytest.mark.parametrize("call", ["consumer.get(60)", "producer.lease((1,), 'uint8')"])
def test_a_child_forked_in_a_signal_handler_does_not_continue_the_call_of_its_parent(
    name: str, spawn: Spawn, call: str
) -> None:
    with Pool.create(name, classes=[(4096, 1)]) as pool:
        held = Producer(pool).lease((1,), "uint8")
        parent = spawn(
            "import os, signal\n"
            "def fork(*_): print('child\\n' if os.fork() == 0 else 'parent\\n', end='')\n"
            "signal.signal(signal.SIGUSR1, fork)\n"
            "pool = Pool.open(sys.argv[1]); consumer, producer = Consumer(pool), Producer(pool)\n"
            f"print('up')\ntry: print(type({call}).__name__)\n"
            "except PoolClosed: print('closed\\n', end=''); os._exit(0)\n"
            "print(os.waitstatus_to_exitcode(os.wait()[1]))",
            name,
        )
        assert parent.line() == "up"
        time.sleep(0.1)
        parent.popen.send_signal(signal.SIGUSR1)
        assert {parent.line() for _ in range(3)} == {"parent", "child", "closed"}
        if "get" in call:
            held.publish(1)
        else:
            held.abort()
        assert parent.line() == ("Item" if "get" in call else "Lease")
        assert parent.line() == "0"


def test_a_forked_child_cannot_use_its_handles_and_disturbs_nothing(
    name: str, spawn: Spawn
) -> None:
    parent = spawn(
        "import gc, os\n"
        "pool = Pool.open(sys.argv[1], label='parent'); p = Producer(pool); c = Consumer(pool)\n"
        "lease = p.lease((1,), 'uint8'); p.lease((1,), 'uint8').publish(4); item = c.get()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    calls = [pool.stats, c.try_get, lambda: p.lease((1,), 'uint8'),\n"
        "             lambda: lease.publish(1), lambda: lease.write(b'x'), item.release,\n"
        "             lambda: lease.__dlpack__(), lambda: item.__dlpack__(max_version=(1, 0))]\n"
        "    for call in calls:\n"
        "        try: call(); print('done')\n"
        "        except PoolClosed as error: print('parent process' in str(error))\n"
        "    try:\n"
        "        with item: raise KeyError\n"
        "    except Exception as error: print(type(error) is KeyError)\n"
        "    del lease, item; gc.collect()\n"
        "    own = Pool.open(sys.argv[1]); print(own.stats()['segments'][0]['in_use_slabs'])\n"
        "    own.close(); print(os.getpid()); time.sleep(60)\n"
        "time.sleep(60)\n",
        name,
    )
    with Pool.create(name, classes=[(4096, 3)]) as pool:
        assert [parent.line() for _ in range(10)] == ["True"] * 9 + ["2"]
        child = int(parent.line())
        try:
            parent.kill()  # The child lives on, without the locks of its parent.
            dead = pool.wait_dead(timeout_s=30)
            assert dead is not None
            assert (dead.label, dead.pid) == ("parent", parent.popen.pid)
            with Consumer(pool).get(timeout_s=30) as item:
                assert (item.key, item.attempt) == (4, 1)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_leaves_the_gateway_to_its_parent(name: str, spawn: Spawn) -> None:
    with Pool.create(name):
        parent = spawn(
            "import os, signal\n"
            "pool = Pool.open(sys.argv[1]); gateway = Gateway(pool, interface='127.0.0.1')\n"
            "if (child := os.fork()) == 0:\n"
            "    signal.alarm(20)\n"
            "    try: gateway.wait(0)\n"
            "    except PoolClosed as error: print('parent process' in str(error))\n"
            "    gateway.close(); del gateway; os._exit(0)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), gateway.wait(0))",
            name,
        )
        assert [parent.line() for _ in range(2)] == ["True", "0 []"]
