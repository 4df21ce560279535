"""Property tests have no time limit: a busy machine is no failure. Triton runs in its interpreter, on the CPU."""

import gc
import inspect
import logging
import os

import pytest
from hypothesis import settings

settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# Before anything imports triton, which reads it once.
os.environ["TRITON_INTERPRET"] = "1"


class Forgotten(logging.Handler):
    """Tasks whose failure nobody read; asyncio says so when the garbage is collected."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.fixture(scope="module", autouse=True)
def nothing_is_forgotten(request):
    """Collects at the end of a module with coroutines, so that a forgotten failure shows where it was made.

    Elsewhere it would surface inside whatever runs then. CPython 3.11 even fails there, when a traceback is
    formatted inside `ast.parse` (python/cpython#106905).
    """
    if not any(map(inspect.iscoroutinefunction, vars(request.module).values())):
        yield
        return
    seen = Forgotten()
    logging.getLogger("asyncio").addHandler(seen)
    yield
    gc.collect()
    logging.getLogger("asyncio").removeHandler(seen)
    assert seen.messages == []
