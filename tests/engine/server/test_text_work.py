"""Work on clients' texts beside the event loop: whom its faults and its waiting times are laid to."""

from __future__ import annotations

import pytest

from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.text import TextWorkers


@pytest.fixture
def text():
    workers = TextWorkers(Limits(tokenizer_threads=1, tokenizer_queue=2))
    yield workers
    workers.close()


def fail() -> None:
    raise KeyError("the client's secret")


async def test_a_failure_that_nobody_foresaw_is_refused_and_its_words_stay_out_of_the_log(text, caplog):
    with pytest.raises(ApiError) as caught:
        await text.run(fail, param="prompt")
    body = caught.value.body
    assert (body.status, body.param) == (400, "prompt")
    assert body.message == "prompt: cannot be processed: change or shorten it"
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage().startswith("work on prompt failed: KeyError in fail, line ")
    assert "secret" not in caplog.text
