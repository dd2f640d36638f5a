"""Settings of every test: hypothesis draws the same examples each run and never judges by the clock."""

import pytest
from hypothesis import settings

settings.register_profile("turnwise", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("turnwise")


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="run soak tests whole, not at a tenth or less")


@pytest.fixture(scope="session")
def soak(request):
    """Whether soak tests run whole."""
    return request.config.getoption("--soak")
