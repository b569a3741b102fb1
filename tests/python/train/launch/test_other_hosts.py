"""What a host checks before its encoder ranks join a run of another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import run_tree

from flowtrain.config import ConfigError, from_dict
from flowtrain.config.load import dump, load
from flowtrain.train.launch.other_hosts import write_files
from flowtrain.train.state.resume import FINGERPRINT, fingerprint
from flowtrain.train.state.run_folder import CONFIG


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
