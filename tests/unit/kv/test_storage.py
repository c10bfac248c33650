"""The pool's bytes: memory files that other processes map, and views that hit the right bytes."""

import mmap
import os

import pytest

from kvfence.core.errors import CapacityError
from kvfence.core.invariant import InvariantBroken
from kvfence.kv import storage
from kvfence.kv.seal import pack_heads, read_head, write_head
from kvfence.kv.storage import PoolBuffer, map_shared, open_shared, zero_pages
from tests.pools import LAYOUT, PREFILL, fill, make_pool, tags_of


def test_bytes_written_through_one_mapping_are_read_through_another() -> None:
    """Two mappings of one descriptor are one memory."""
    memory = open_shared(1 << 16)
    other = map_shared(os.dup(memory.fd), memory.nbytes)
    memory.buffer[1000] = 7
    assert other.buffer[1000] == 7
    other.close()
    memory.close()


def test_a_memory_file_has_no_name(tmp_path: object) -> None:
    """Nothing is left in the directory, so nothing leaks when a worker is killed."""
    memory = open_shared(1 << 16, directory=str(tmp_path))
    assert os.listdir(str(tmp_path)) == []
    assert os.fstat(memory.fd).st_nlink == 0
    memory.close()


def test_all_space_is_taken_at_start(tmp_path: object) -> None:
    """No page of the file is left to be allocated, and perhaps missing, at its first write."""
    memory = open_shared(1 << 20, directory=str(tmp_path))
    assert os.fstat(memory.fd).st_blocks * 512 >= 1 << 20
    memory.close()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a file system in memory")
def test_no_space_is_an_error_at_start() -> None:
    """A file system that cannot hold the pool gives a CapacityError that says what to lower; nothing stays open."""
    system = os.statvfs("/dev/shm")
    nbytes = system.f_blocks * system.f_frsize + (1 << 20)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CapacityError, match=rf"needs {nbytes} bytes.*free space in /dev/shm.*lower --pool-tokens"):
        open_shared(nbytes, directory="/dev/shm")
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("kvfence-pool-")]


def test_more_than_the_free_memory_is_refused_with_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message holds what is needed and what is left; nothing is allocated."""
    monkeypatch.setattr(storage, "available_bytes", lambda: 1 << 20)
    with pytest.raises(CapacityError, match=r"needs 2097152 bytes \(2 MiB\) of free memory, 1048576 bytes \(1 MiB\)"):
        open_shared(2 << 20)


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: "os.PathLike[str]") -> None:
    """Where a container may use less than the machine has, that is what is free; its file cache is."""
    root = storage.Path(tmp_path)
    (root / "memory.max").write_text("1000\n")
    (root / "memory.current").write_text("900\n")
    (root / "memory.stat").write_text("active_file 100\ninactive_file 50\nshmem 200\n")
    monkeypatch.setattr(storage, "_CGROUP", root)
    assert storage.available_bytes() == 250
    (root / "memory.max").write_text("max\n")
    assert storage.available_bytes() > 1000


def test_a_shorter_file_than_said_is_refused() -> None:
    """Mapping past the end of a file would be a SIGBUS later."""
    memory = open_shared(1 << 16)
    with pytest.raises(CapacityError, match="one layout"):
        map_shared(memory.fd, 1 << 17)
    memory.close()


def test_closing_twice_is_closing_once() -> None:
    """A second close does not close somebody else's descriptor."""
    memory = open_shared(1 << 16)
    memory.close()
    memory.close()
    assert memory.fd == -1


def test_a_mapping_with_views_left_stays_readable() -> None:
    """Closing while a view lives leaves the bytes to the view."""
    memory = open_shared(LAYOUT.record_bytes * 2)
    pool = PoolBuffer(memory.buffer, LAYOUT, 2)
    memory.close()
    pool.records[1, 0] = 3
    assert pool.records[1, 0] == 3


def test_heads_tails_and_units_are_the_records_own_bytes() -> None:
    """A head written through one view shows in every other, at the start of its record and no other."""
    pool = make_pool(4)
    tag = tags_of(PREFILL, 9, [2])[0]
    write_head(pool, [2], [tag])
    record = pool.records[2].tobytes()
    assert record[:32] == tag.pack()
    assert not any(record[32:])
    assert pool.units[2 * pool.units_per_page].tobytes() == tag.pack()
    pool.tails["num_tokens"][2] = 5
    assert pool.records[2, LAYOUT.tail_offset + 32] == 5
    assert not pool.records[[0, 1, 3]].any()


def test_a_pool_needs_a_writable_buffer() -> None:
    """Read-only bytes are a bug in the caller."""
    with pytest.raises(InvariantBroken):
        PoolBuffer(memoryview(bytes(LAYOUT.record_bytes)), LAYOUT, 1)


def test_zeroing_pages_leaves_the_others() -> None:
    """Whole records become zero, heads and tails included, and no neighbour changes."""
    pool = make_pool(4)
    fill(pool, tags_of(PREFILL, 1, range(4)), 16, 7)
    others = pool.records[[0, 2]].copy()
    zero_pages(pool, [1, 3])
    assert not pool.records[[1, 3]].any()
    assert (pool.records[[0, 2]] == others).all()


def test_a_pool_over_mapped_memory_is_the_same_pool() -> None:
    """Any writable buffer will do."""
    buffer = mmap.mmap(-1, LAYOUT.record_bytes * 3)
    pool = PoolBuffer(buffer, LAYOUT, 3)
    write_head(pool, [0, 2], pack_heads(PREFILL, 4, [0, 2]))
    assert read_head(pool, 2) == tags_of(PREFILL, 4, [2])[0]
