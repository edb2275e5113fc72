"""Small files that unpack to gigabytes: refused in one line, with little memory and disk."""

import pytest

from bombs import BOMBS, MIB, run_watched


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_with_little_memory_and_disk(name, tmp_path):
    bomb, work, tmp = BOMBS[name], tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    tmp.mkdir()
    path = tmp_path / bomb.name
    bomb.make(path)
    line = [str(path) if word == "BOMB" else word for word in bomb.command]
    code, said, peak = run_watched(line, work, tmp, 100)
    size = path.stat().st_size
    assert code == 2, said
    assert str(path) in said
    assert len(said.splitlines()) == 1, said
    assert peak.memory < 800 * MIB + 2 * size, f"{peak.memory / MIB:.0f} MiB"
    assert peak.disk < 150 * MIB, f"{peak.disk / MIB:.0f} MiB"
    assert [*work.iterdir(), *tmp.iterdir()] == []
