"""`--update-golden` writes the golden manifests anew; read the difference before committing it."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write tests/operator/golden anew")


@pytest.fixture
def update_golden(request):
    return request.config.getoption("--update-golden", default=False)
