"""The fork server of a test process, which has imported what ranks import.

A process has one such server. It imports the modules that were set last, so that they are set only
here, and ignores those that it cannot import: it finds packages, and no modules of tests.
"""

from __future__ import annotations

import multiprocessing

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["flowtrain.train.launch.run", "flowtrain.train.assembly.main", "flowtrain.models.qwen3_vl"]
)
