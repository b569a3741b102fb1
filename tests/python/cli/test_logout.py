"""Which files systemd deletes at logout, as its configuration says."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from flowtrain.logout import deleted_at_logout

POOLS = Path("/dev/shm/flowtrain-1000")


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in ({"run/systemd/system/.keep": ""} | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "deleted"),
    [
        ({}, True),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\n"}, False),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\nRemoveIPC = no\n"}, False),
        ({"usr/lib/systemd/logind.conf": "RemoveIPC=no"}, False),
        (
            {
                "usr/lib/systemd/logind.conf": "RemoveIPC=no",
                "etc/systemd/logind.conf": "#RemoveIPC=yes",
            },
            True,
        ),
        (
            {
                "etc/systemd/logind.conf": "RemoveIPC=yes",
                "usr/lib/systemd/logind.conf.d/50-hpc.conf": "RemoveIPC=no",
            },
            False,
        ),
        (
            {
                "usr/lib/systemd/logind.conf.d/50-hpc.conf": "RemoveIPC=no",
                "etc/systemd/logind.conf.d/50-hpc.conf": "[Login]",
            },
            True,
        ),
        (
            {
                "run/systemd/logind.conf.d/10-a.conf": "RemoveIPC=yes",
                "etc/systemd/logind.conf.d/20-b.conf": "RemoveIPC=no",
            },
            False,
        ),
        ({"etc/login.defs": "SYS_UID_MAX 1000\n"}, False),
    ],
)
def test_the_setting_is_read_as_systemd_reads_it(
    tmp_path: Path, files: dict[str, str], deleted: bool
) -> None:
    assert deleted_at_logout(POOLS, uid=1000, root=system(tmp_path, files)) == deleted


def test_only_files_below_dev_shm_of_users_that_log_out_are_deleted(tmp_path: Path) -> None:
    assert not deleted_at_logout(POOLS, uid=1000, root=tmp_path)  # Without systemd.
    root = system(tmp_path, {})
    assert not deleted_at_logout(Path("/run/pools"), uid=1000, root=root)
    assert not deleted_at_logout(POOLS, uid=0, root=root)
    nobody = pwd.getpwnam("nobody").pw_uid
    assert deleted_at_logout(POOLS, uid=nobody, root=root)
    system(tmp_path, {"var/lib/systemd/linger/nobody": ""})
    assert not deleted_at_logout(POOLS, uid=nobody, root=root)
