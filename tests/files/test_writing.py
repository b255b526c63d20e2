"""Files are written whole, whoever else writes them."""

from __future__ import annotations

import multiprocessing
from functools import partial
from pathlib import Path

from specgate.files.json_text import read_json
from specgate.files.writing import write_json

TIMES = 200


def written(file: Path, number: int) -> int:
    """How often a process has written the file and read it whole."""
    for _ in range(TIMES):
        write_json(file, [number] * 2000)
        content = read_json(file)
        assert isinstance(content, list) and len(content) == 2000 and len(set(content)) == 1
    return TIMES


def test_a_file_that_two_processes_write_at_once_is_always_one_of_theirs(tmp_path: Path) -> None:
    """As the noise profile of a machine beside which two calibrations end."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(partial(written, tmp_path / "noise.json"), (1, 2)) == [TIMES] * 2
    assert [file.name for file in tmp_path.iterdir()] == ["noise.json"]
