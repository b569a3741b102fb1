"""The key of a slab holds all of its fields."""

from flowtrain.train.records.key import MAX_HITS, RecordKey


def test_each_field_is_unpacked_as_it_was_packed() -> None:
    largest = {
        "step": (1 << 32) - 1,
        "item": (1 << 24) - 1,
        "part": (1 << 24) - 1,
        "version": (1 << 32) - 1,
        "skipped": True,
        "hits": MAX_HITS,
    }
    nothing = dict.fromkeys(largest, 0) | {"skipped": False}
    for name, value in largest.items():
        key = RecordKey(**(nothing | {name: value}))
        assert RecordKey.unpack(key.pack()) == key
    packed = RecordKey(**largest).pack()
    assert packed < 1 << 128 and RecordKey.unpack(packed) == RecordKey(**largest)
    assert RecordKey.unpack(RecordKey(0, 0, 0, 0, hits=MAX_HITS + 1).pack()).hits == MAX_HITS
