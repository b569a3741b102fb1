"""The fork server of a test process, which has imported what commands and ranks import.

A process has one such server. It imports the modules that were set last, so that they are set only
here, and ignores those that it cannot import: it finds packages, and no modules of tests. Modules
that start a thread, as `transformers.trainer` does, are not among them: forks would not have it,
and might wait for its locks.
"""

from __future__ import annotations

import multiprocessing

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        *("flowtrain.cli.main", "flowtrain.models.qwen3_vl", "flowtrain.train.assembly.main"),
        *("flowtrain.train.launch.external", "flowtrain.train.launch.run"),
    ]
)
