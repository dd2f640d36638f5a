from tests.environments.rewards.verdict.conftest import verify  # noqa: F401  # a fixture
