"""Property tests have no time limit: a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
