import math

import pytest

from turnwise.viewer import page_server


@pytest.fixture(autouse=True)
def whole_reading(monkeypatch):
    """A live page reads all at once, however long that takes."""
    monkeypatch.setattr(page_server, "_SLICE_S", math.inf)
