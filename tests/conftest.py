"""Property tests have no time limit: a busy machine is no failure. Triton runs in its interpreter, on the CPU."""

import os

from hypothesis import settings

settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# Before anything imports triton, which reads it once.
os.environ["TRITON_INTERPRET"] = "1"
