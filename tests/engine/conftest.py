"""Tests of the engine run on one thread each, so that none spins while it waits for a busy core."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    import torch

    torch.set_num_threads(1)
