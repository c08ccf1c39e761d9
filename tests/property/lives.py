"""Lives in which the machines of this folder show planted mistakes, each found by a search and shortened.

`tests.support.machines` says how to record another one.
"""

from __future__ import annotations

from typing import Final

from keyfold_compactor.decide.settings import TopicSettings
from tests.support.machines import Step

LONG_KEY: Final = b"long key " * 30

LOG: Final[dict[str, list[Step]]] = {
    "the lag is ignored": [
        (
            "begin",
            {
                "topic": TopicSettings(
                    min_compaction_lag_ms=30_000,
                    max_compaction_lag_ms=20_000,
                    delete_retention_ms=60_000,
                    segment_bytes=500,
                    file_delete_delay_ms=60_000,
                    merge_span_ms=10_000,
                ),
                "seed": 2013,
            },
        ),
        ("append_records", {"batches": [[(b"a", None, 2)], [(b"a", b"|\xb2\xdaJ\xc0\xd3", 3), (b"c", None, 2)]]}),
        ("clean_with_a_fault", {"at": 21, "choice": 6}),
    ],
    "tombstones go at once": [
        (
            "begin",
            {
                "seed": 2_135_975,
                "topic": TopicSettings(
                    min_cleanable_dirty_ratio=1.0,
                    delete_retention_ms=60_000,
                    segment_bytes=100_000,
                    file_delete_delay_ms=5000,
                    remove_keyless=True,
                    retention_ms=150_000,
                ),
            },
        ),
        (
            "change_settings",
            {
                "topic": TopicSettings(
                    min_cleanable_dirty_ratio=0.0,
                    delete_retention_ms=5000,
                    segment_bytes=500,
                    file_delete_delay_ms=60_000,
                    remove_keyless=True,
                    merge_span_ms=0,
                )
            },
        ),
        ("append_with_a_fault", {"at": 1, "choice": 3, "rows": [(b"c", None, 2), (b"c", None, 3)]}),
        ("clean_with_a_fault", {"at": 13, "choice": 6}),
        ("clean_during_an_append", {"at": 2, "rows": [(b"c", b"\xc2\xb4\x97\x1d<;", 3)]}),
    ],
    "readers get no time": [
        (
            "begin",
            {
                "seed": 752_587,
                "topic": TopicSettings(
                    delete_retention_ms=0,
                    segment_bytes=1,
                    file_delete_delay_ms=5000,
                    delete=True,
                    retention_ms=150_000,
                    retention_bytes=1000,
                ),
            },
        ),
        ("append_records", {"batches": [[(b"a", None, 3), (b"c", None, 1)]]}),
        (
            "clean_during_an_append",
            {
                "at": 1,
                "rows": [
                    (b"c", None, 3),
                    (b"b", b"\x90\x19\x9d\xe9E\xac\x82R\xe7\xd1|\xdf\xa1\xa1\x06\xaa", 2),
                    (b"", None, 2),
                    (b"c", None, 2),
                    (b"c", b"\xe1d\x11\xe8\x02|\x8b\x9f\xf4c8)\xa5\x10<\xa6\xf1n\x931", 2),
                    (b"b", None, 1),
                    (b"c", None, 2),
                    (b"b", None, 2),
                    (b"a", b"\x1e\xd0", 3),
                    (b"", None, 1),
                ],
            },
        ),
    ],
    "retention takes what is young": [
        (
            "begin",
            {
                "seed": 12_305,
                "topic": TopicSettings(
                    min_cleanable_dirty_ratio=1.0,
                    delete_retention_ms=5000,
                    segment_bytes=500,
                    file_delete_delay_ms=0,
                    delete=True,
                    retention_ms=20_000,
                    merge_span_ms=10_000,
                ),
            },
        ),
        (
            "clean_during_an_append",
            {"at": 3, "rows": [(None, None, 3), (b"a", None, 2), (b"b", None, 2), (None, None, 2)]},
        ),
        (
            "append_during_a_pass",
            {"at": 14, "rows": [(b"c", b"\x0b\x10\xd5\x9a\xe2\xb4P\xaf\x9cQ\xa4", 1), (LONG_KEY, None, 2)]},
        ),
    ],
    "orphans go by name alone": [
        (
            "begin",
            {
                "seed": 214_039,
                "topic": TopicSettings(
                    min_compaction_lag_ms=3000,
                    max_compaction_lag_ms=20_000,
                    delete_retention_ms=0,
                    segment_bytes=500,
                    file_delete_delay_ms=5000,
                    delete=True,
                    retention_ms=20_000,
                    merge_span_ms=10_000,
                ),
            },
        ),
        (
            "clean_during_an_append",
            {"at": 3, "rows": [(None, b"lJ\xbb\xf0I\xa1|{\xca\x80\xe78\xa9\xa3", 1), (None, b"\x88\xa5", 2)]},
        ),
    ],
    "a reader goes on after any purge": [
        (
            "begin",
            {
                "topic": TopicSettings(
                    min_cleanable_dirty_ratio=0.0,
                    max_compaction_lag_ms=20_000,
                    delete_retention_ms=5000,
                    segment_bytes=500,
                    file_delete_delay_ms=0,
                    remove_keyless=True,
                    delete=True,
                    retention_bytes=1000,
                    segment_min_garbage_ratio=0.3,
                    merge_span_ms=0,
                ),
                "seed": 3_628_799,
            },
        ),
        (
            "append_records",
            {
                "batches": [
                    [(LONG_KEY, b"O\x92\x9a\xe6\x8al", 3)],
                    [(b"", b"Gk\x16/\xd1\xeaA", 1), (b"a", None, 3), (b"d", None, 2), (None, None, 3)],
                    [(b"", None, 1), (b"c", None, 2)],
                    [(b"a", None, 3)],
                ]
            },
        ),
        ("begin_to_read", {"is_snapshot": False}),
        ("clean_during_a_pass", {"at": 10, "wait_ms": 0}),
        ("read_on", {"count": 30, "which": 1}),
    ],
    "epochs do not fence": [
        (
            "change_settings",
            {
                "topic": TopicSettings(
                    compact=False,
                    min_cleanable_dirty_ratio=0.0,
                    min_compaction_lag_ms=30_000,
                    max_compaction_lag_ms=20_000,
                    delete_retention_ms=5000,
                    segment_bytes=100_000,
                    file_delete_delay_ms=60_000,
                    delete=True,
                    merge_span_ms=0,
                )
            },
        ),
        ("begin_to_read", {"is_snapshot": True}),
        ("take_over_with_a_fault", {"at": 1, "choice": 5}),
        (
            "a_zombie_wakes",
            {"rows": [(b"", None, 2), (b"", None, 3), (b"b", None, 3), (b"", None, 3), (b"d", b"\x16\xf3\xc3\x83", 1)]},
        ),
    ],
}

CLOCKS: Final[list[Step]] = [
    (
        "begin",
        {
            "seed": 553,
            "topic": TopicSettings(
                min_cleanable_dirty_ratio=0.0,
                min_compaction_lag_ms=30_000,
                delete_retention_ms=0,
                segment_bytes=500,
                file_delete_delay_ms=5000,
                remove_keyless=True,
                retention_ms=20_000,
                retention_bytes=1000,
                merge_span_ms=10_000,
            ),
        },
    ),
    ("clean_during_an_append", {"at": 2, "rows": [(None, None, 1), (b"", None, 2)]}),
]

REPLICA: Final[dict[str, list[Step]]] = {
    "tombstones are not held": [
        (
            "begin",
            {
                "seed": 86,
                "topic": TopicSettings(
                    min_cleanable_dirty_ratio=0.0,
                    min_compaction_lag_ms=3000,
                    delete_retention_ms=0,
                    segment_bytes=1,
                    file_delete_delay_ms=5000,
                    remove_keyless=True,
                    delete=True,
                ),
            },
        ),
        (
            "append_with_a_fault",
            {
                "at": 3,
                "choice": 4,
                "rows": [
                    (None, b"", 2),
                    (LONG_KEY, b"", 2),
                    (b"c", b"keyfold.check", 1),
                    (b"", b"Bi0\x81\xd9", 2),
                    (None, None, 2),
                    (b"b", None, 1),
                    (b"a", b"9\x87$\x87\r", 3),
                    (b"a", None, 1),
                    (b"d", b"\x00", 2),
                    (None, b"ZP\x87(", 1),
                ],
            },
        ),
        ("clean_during_an_append", {"at": 3, "rows": [(b"", None, 3), (b"", None, 3)]}),
        ("read_with_a_sleep", {"count": 6, "is_snapshot": True, "waits_ms": [90_000, 0]}),
    ],
    "readers get no time": [
        ("begin_a_replica", {"seed": 1, "delay_ms": 60_000, "hold_max_ms": 1_152_921_504_606_846_976}),
        ("begin", {"seed": 1, "topic": TopicSettings(min_cleanable_dirty_ratio=0.0)}),
        ("append_records", {"batches": [[(b"a", b"1", 1)], [(b"a", b"2", 1)]]}),
        ("replicate", {"rounds": 1}),
        ("clean", {"force": True, "collect": False}),
        ("replicate", {"rounds": 1}),
        ("replica_time_passes", {"by_ms": 40_000}),
        ("append_records", {"batches": [[(b"a", b"1", 1)], [(b"a", b"2", 1)]]}),
        ("replicate", {"rounds": 1}),
        ("replica_time_passes", {"by_ms": 40_000}),
        ("clean", {"force": True, "collect": False}),
        ("replicate", {"rounds": 1}),
        ("replica_time_passes", {"by_ms": 40_000}),
        ("new_process", {"pin_min_bytes": 1_152_921_504_606_846_976}),
        ("replicate", {"rounds": 2}),
    ],
    "the commit comes before the objects": [
        (
            "change_settings",
            {
                "topic": TopicSettings(
                    min_cleanable_dirty_ratio=1.0,
                    delete_retention_ms=0,
                    segment_bytes=100_000,
                    file_delete_delay_ms=0,
                    remove_keyless=True,
                    delete=True,
                    retention_ms=150_000,
                    retention_bytes=1000,
                    segment_min_garbage_ratio=0.3,
                    merge_span_ms=0,
                )
            },
        ),
        (
            "another_replicates_what_is_new_during_a_round",
            {"at": 2, "force": False, "rows": [(b"d", b"@", 2), (LONG_KEY, None, 1)], "side": "source"},
        ),
    ],
    "the cursor runs ahead": [
        (
            "begin",
            {
                "topic": TopicSettings(
                    compact=False,
                    min_cleanable_dirty_ratio=1.0,
                    min_compaction_lag_ms=3000,
                    max_compaction_lag_ms=20_000,
                    delete_retention_ms=0,
                    segment_bytes=500,
                    file_delete_delay_ms=60_000,
                    retention_ms=20_000,
                    merge_span_ms=0,
                ),
                "seed": 1_790_361,
            },
        ),
        ("advance_over_a_hole", {"length": 4}),
    ],
    "times are those of the replica": [
        ("clean_with_a_fault", {"at": 2, "choice": 2}),
        (
            "append_with_a_fault",
            {"at": 1, "choice": 5, "rows": [(b"a", b"\x86\x96\xd1\xe6\xf1\xa8{\x14\xd2\xdc\x07m\x8dG\xfb\\-", 2)]},
        ),
    ],
    "what is unlinked is forgotten": [
        (
            "begin",
            {
                "topic": TopicSettings(
                    min_cleanable_dirty_ratio=1.0,
                    min_compaction_lag_ms=3000,
                    delete_retention_ms=5000,
                    segment_bytes=500,
                    file_delete_delay_ms=5000,
                    remove_keyless=True,
                    retention_bytes=1000,
                    segment_min_garbage_ratio=0.9,
                    merge_span_ms=10_000,
                ),
                "seed": 17_407,
            },
        ),
        (
            "append_with_a_fault",
            {
                "at": 3,
                "choice": 10,
                "rows": [
                    (b"d", None, 3),
                    (b"", b"\x95\x87\xa2\xa8\xcb\x98\xc5:Rsw", 1),
                    (None, b"\xee\xc6\x88", 3),
                    (b"c", b"\xad\xe6\x8c\x16^\x01J+\r\x92=m", 2),
                ],
            },
        ),
    ],
    "anybody may commit anything": [
        (
            "begin",
            {
                "topic": TopicSettings(
                    compact=False,
                    min_cleanable_dirty_ratio=1.0,
                    min_compaction_lag_ms=30_000,
                    max_compaction_lag_ms=20_000,
                    delete_retention_ms=60_000,
                    segment_bytes=1,
                    file_delete_delay_ms=0,
                    remove_keyless=True,
                    retention_ms=150_000,
                    retention_bytes=1000,
                    merge_span_ms=0,
                ),
                "seed": 1_296_652_270,
            },
        ),
        (
            "another_replicates_what_is_new_during_a_round",
            {
                "at": 14,
                "force": False,
                "rows": [
                    (b"b", None, 1),
                    (b"b", None, 1),
                    (b"d", b"", 1),
                    (b"b", None, 3),
                    (b"c", None, 1),
                    (b"d", None, 2),
                ],
                "side": "source",
            },
        ),
        ("clean_during_an_append", {"at": 2, "rows": [(LONG_KEY, None, 2)]}),
        (
            "another_replicates_what_is_new_during_a_round",
            {
                "at": 7,
                "force": True,
                "rows": [(b"", b"T\xc6\xf3\r\x1b\x88", 3), (b"c", b"\x02\x84\xc9\xb9", 3)],
                "side": "source",
            },
        ),
    ],
}
