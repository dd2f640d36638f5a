"""What tests of credit share."""

import pytest

from environments.credit.estimator_registry import _functions, _specs


@pytest.fixture
def forgets_registrations():
    functions, specs = dict(_functions), dict(_specs)
    yield
    for now, before in ((_functions, functions), (_specs, specs)):
        now.clear()
        now.update(before)
