from __future__ import annotations

from pathlib import Path

import pytest
from support import write_tiny_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strips, samples without an image and samples with several, and a tiny model."""
    folder = tmp_path_factory.mktemp("data")
    write_tiny_data(folder, text_only=0.2, multi_image=0.2)
    return folder
