"""What a started process does about the collections of its heap."""

from __future__ import annotations

import gc

import pytest

from pagefleet_engine.process import GC_THRESHOLDS, settle_heap


@pytest.fixture
def heap():
    """Puts the collector of this process back as it was."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_lives_at_the_start_is_never_collected_again(heap):
    kept = [[] for _ in range(1_000)]
    settle_heap()
    assert gc.get_freeze_count() > len(kept)
    assert all(entry is not kept for entry in gc.get_objects())
    assert gc.get_threshold() == GC_THRESHOLDS


def test_what_requests_leave_is_still_collected(heap):
    settle_heap()
    loop = []
    loop.append(loop)
    del loop
    assert gc.collect() >= 1
