"""What tests of credit share."""

import pytest

from environments.credit.estimator_registry import _functions, _specs


@pytest.fixture
def forgets_registrations():
    before = [(each, dict(each)) for each in (_functions, _specs)]
    yield
    for now, kept in before:
        now.clear()
        now.update(kept)
