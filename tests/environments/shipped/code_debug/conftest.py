from tests.environments.rewards.code_judge.conftest import verify  # noqa: F401  # a fixture
