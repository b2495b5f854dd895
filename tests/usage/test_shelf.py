"""The spools of several processes below one folder (proxy.usage.shelf)."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.usage.segment import Entry
from proxy.usage.shelf import Shelf


def opened(root: Path) -> Shelf:
    """The spools of one process."""
    shelf = Shelf(root, ("file",), 2**20, max)
    shelf.open()
    return shelf


def numbers(shelf: Shelf) -> list[int]:
    """All that the sink is handed now."""
    found = []
    while (batch := shelf.read("file", 10)) is not None:
        found += [entry.milliseconds for entry in batch.entries]
        shelf.acknowledge("file", batch)
    return found


def test_processes_have_folders_of_their_own(tmp_path: Path) -> None:
    """The first that is free; what one writes is not the other's."""
    one, other = opened(tmp_path), opened(tmp_path)
    one.append([Entry(1, b"")])
    other.append([Entry(2, b"")])
    assert (numbers(one), numbers(other)) == ([1], [2])
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["0", "1"]
    one.close()
    third = opened(tmp_path)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["0", "1"]
    third.close()
    other.close()


def test_what_fewer_processes_find_is_taken_on(tmp_path: Path) -> None:
    """At the start, oldest folders first; each is given back once it is empty."""
    before = [opened(tmp_path) for _ in range(3)]
    for number, shelf in enumerate(before):
        shelf.append([Entry(number, b"")])
    for shelf in before:
        shelf.close()
    alone = opened(tmp_path)
    assert alone.used > 0
    alone.append([Entry(9, b"")])
    assert sorted(numbers(alone)) == [0, 1, 2, 9]
    assert alone.used == 0
    others = [opened(tmp_path), opened(tmp_path)]
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["0", "1", "2"]
    for shelf in (alone, *others):
        shelf.close()


def test_what_is_left_later_is_taken_on_later(tmp_path: Path) -> None:
    """A process that ends while others run."""
    lasting, ending = opened(tmp_path), opened(tmp_path)
    ending.append([Entry(1, b"")])
    assert not lasting.adopt()
    ending.close()
    assert lasting.adopt()
    assert not lasting.adopt()
    assert numbers(lasting) == [1]
    lasting.close()


def test_folder_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    """Not with the first turn."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|directory"):
        opened(tmp_path / "file")
