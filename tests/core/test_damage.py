"""Inspection of a damaged control file: a result or an error, never a crash."""

from __future__ import annotations

import os

from core.processes import Spawn

LOOK = """
import random
from pathlib import Path
control = Path(sys.argv[1])
image, draw = control.read_bytes(), random.Random(7)
label = image.index(b"encoder.0")
for round in range(200):
    damaged = bytearray(image)
    for _ in range(draw.randrange(1, 40)):
        place = draw.choice([draw.randrange(64, len(image)), draw.randrange(64, label + 2000)])
        damaged[place] = draw.choice([0, 1, 127, 255, draw.randrange(256)])
    damaged[label:label + 9] = bytes(draw.randrange(1, 256) for _ in range(9))
    control.write_bytes(damaged)
    for look in (inspect, flight_record, Pool.open, Pool.exists):
        try: look(control.parent.name)
        except FlowTrainError: pass
    list_pools()
print("looked", round)
"""


def test_inspection_of_a_damaged_file_ends(name: str, spawn: Spawn) -> None:
    maker = spawn(
        "pool = Pool.create(sys.argv[1], bytes=1 << 16, max_cells=8, max_lanes=4, rings=['a', 'b'],"
        " label='encoder.0')\n"
        "p, c = Producer(pool, 'a'), Consumer(pool, 'a')\n"
        "p.lease((4,), 'uint8').publish(1); item = c.get(); p.lease((4,), 'uint8').publish(2)\n"
        "print('made'); sys.stdin.readline()",
        name,
    )
    assert maker.line() == "made"
    maker.kill()
    looker = spawn(LOOK, f"/dev/shm/flowtrain-{os.geteuid()}/{name}/control")
    assert looker.line() == "looked 199"
