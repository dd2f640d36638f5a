"""What leaves for a trainer stays byte by byte: views, and posts whole, padded, shortened and forked."""

import orjson

from tests.environments.wire.golden_groups import GOLDEN, files
from tests.tables import cases

MADE = dict(files())


@cases("name", MADE)
def test_what_leaves_equals_its_golden_file(name):
    assert MADE[name] == (GOLDEN / name).read_bytes()


def test_every_golden_file_is_compared():
    assert set(MADE) == {path.name for path in GOLDEN.iterdir()}


def test_a_scalar_post_is_plain_grpo_data():
    (post,) = map(orjson.loads, (GOLDEN / "scalar.posts.whole.jsonl").read_bytes().splitlines())
    assert list(post) == [
        "tokens", "masks", "scores", "messages", "inference_logprobs", "group_overrides"
    ]  # fmt: skip
    assert post["group_overrides"] == {}
