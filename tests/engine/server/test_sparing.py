"""Lines that anybody can cause do not fill the log."""

from __future__ import annotations

import logging

import pytest

from pagefleet_engine.server.control.auth import ControlTokens
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.sparing import SparingLog


def test_one_line_per_interval_says_how_many_there_were(caplog):
    now = [0.0]
    sparing = SparingLog(logging.getLogger("test"), monotonic=lambda: now[0], interval_s=10)
    for at in (0.0, 0.0, 9.9, 10.0, 10.1, 30.0):
        now[0] = at
        sparing.warning("refused at %g", at)
    assert caplog.messages == [
        "refused at 0",
        "refused at 10 (2 more since the last line)",
        "refused at 30 (1 more since the last line)",
    ]


def test_a_thousand_wrong_tokens_are_two_lines(tmp_path, caplog):
    now = [0.0]
    keys = tmp_path / "keys"
    keys.write_text("")
    tokens = ControlTokens(keys, audience="pod", monotonic=lambda: now[0], unix_time=lambda: 0.0)
    for turn in range(1_000):
        now[0] = turn / 100
        with pytest.raises(ApiError):
            tokens.check({"headers": [(b"authorization", b"Bearer x")]})
    now[0] = 10.0
    with pytest.raises(ApiError):
        tokens.check({"headers": []})
    lines = [message for message in caplog.messages if message.startswith("control API")]
    assert len(lines) == 2
    assert lines[1].endswith("(999 more since the last line)")
