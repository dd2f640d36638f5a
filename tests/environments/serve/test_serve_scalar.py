"""What `turnwise serve` sends for an environment without turn rewards: plain Atropos data, to the byte."""

import gzip
import json
import urllib.request

from atroposlib.envs.base import ScoredDataGroup

from environments.record.recorder import read_groups
from tests.environments.serve.loopback import ended, running, serve, wait_until
from tests.environments.serve.proxy import Proxy

IGNORED = -100
NOT_SAMPLED = 1.0


def plain(group):
    """A group as an environment of Atropos would send it, written down from what happened in it."""
    data = ScoredDataGroup(
        tokens=[],
        masks=[],
        scores=[],
        messages=[],
        inference_logprobs=[],
        group_overrides={},
    )
    for trajectory in group.trajectories:
        (row,) = trajectory.rows
        tokens, logprobs = list(row.token_ids), list(row.logprobs)
        spans = [range(turn.span.start, turn.span.end) for turn in trajectory.turns]
        sampled = {place for span in spans for place in span}
        data["tokens"].append(tokens)
        data["masks"].append([tokens[n] if n in sampled else IGNORED for n in range(len(tokens))])
        data["scores"].append(trajectory.rewards.outcome)
        data["messages"].append([message.to_openai() for message in trajectory.messages])
        data["inference_logprobs"].append(
            [logprobs[n] if n in sampled else NOT_SAMPLED for n in range(len(tokens))]
        )
    return data


def posted(proxy):
    return [gzip.decompress(body) for _, path, body in proxy.seen if path == "/scored_data"]


def raw_batch(api):
    with urllib.request.urlopen(api.url + "/batch") as answer:
        return answer.read()


def batches_left(api):
    batches = []
    while (batch := raw_batch(api)) != b'{"batch":null}':
        batches.append(batch)
    return batches


def test_a_scalar_environments_posts_and_batches_are_plain_atropos_data_byte_for_byte(api, tmp_path):
    api.start_trainer(batch_size=4, max_token_len=40_000)
    with Proxy(api.port) as proxy:
        with running(serve("ScalarWords", proxy.url, tmp_path, view=None)) as env:
            wait_until(lambda: len(posted(proxy)) >= 3)
            assert ended(env) == 0
        arrived = batches_left(api)

    groups = [each.group for each in read_groups(tmp_path / "record.jsonl") if each.status == "ok"]
    posts = [{"env_id": 0, **plain(group)} for group in groups]
    expected = {json.dumps(post, separators=(",", ":"), ensure_ascii=False).encode(): post for post in posts}
    sent = posted(proxy)
    assert set(sent) <= set(expected)
    # What was not sent waits in the outbox.
    posts = [expected[body] for body in sent]
    assert len({score for group in groups for score in plain(group)["scores"]}) > 2

    for post in posts:
        api.post("/scored_data", post)
    assert sorted(batches_left(api)) == sorted(arrived)
    assert len(arrived) == len(posts)
