"""Token ids and logprobs, wherever servers put them, and nothing that no sampler gave."""

import json

import pytest

from environments.policy.inference.chat_reply import ReplyError, SampledTokens, read_reply
from tests.environments.policy.chat_server import answer
from tests.tables import cases


def tokens(body):
    return read_reply(json.dumps(body).encode(), "p").tokens


def sglang(**more):
    return {"choices": [{"message": {"content": "3"}, "finish_reason": "stop", **more}]}


IDS = SampledTokens(prompt_ids=(7, 8, 9), token_ids=(11, 2), logprobs=(-0.5, -0.25))
CONTENT = {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}


@cases(
    "body",
    [
        answer(),
        sglang(prompt_token_ids=[7, 8, 9], token_ids=[11, 2], logprobs=CONTENT),
        sglang(prompt_token_ids=[7, 8, 9], response_token_ids=[11, 2], logprobs=CONTENT),
        {**sglang(response_token_ids=[11, 2], logprobs=CONTENT), "prompt_token_ids": [7, 8, 9]},
        sglang(
            prompt_token_ids=[7, 8, 9],
            logprobs=None,
            meta_info={"output_token_logprobs": [[-0.5, 11, "a"], [-0.25, 2, None]]},
        ),
    ],
    ids=["vLLM", "one place", "SGLang", "prompt on top", "meta_info"],
)
def test_ids_and_logprobs_are_read_where_the_server_has_them(body):
    assert tokens(body) == IDS


@cases(
    "body",
    [
        sglang(),
        sglang(token_ids=None, response_token_ids=None, logprobs=CONTENT),
        {**sglang(token_ids=None), "prompt_token_ids": [7]},
        sglang(meta_info={"id": "x"}),
    ],
    ids=["none", "null", "prompt alone", "other facts"],
)
def test_a_server_without_ids_gave_text_alone(body):
    assert tokens(body) is None


@cases("wrong", [True, 1.0, "11", None, -1, 2**31, [11]], ids=repr)
@cases("where", ["token_ids", "prompt_token_ids"])
def test_an_id_is_an_integer_of_a_vocabulary(where, wrong):
    ids = {"token_ids": [11, 2], "prompt_token_ids": [7, 8], where: [11, wrong]}
    with pytest.raises(ReplyError, match=rf"{where}\.1 is .*; a token id is an integer"):
        tokens(sglang(**ids))


@cases("wrong", [True, "x", None, -9999.0, -9999, -1e5, 1.0, 3, [1]], ids=repr)
def test_a_logprob_is_one_of_a_sampled_token(wrong):
    logprobs = {"content": [{"logprob": -0.5}, {"logprob": wrong}]}
    with pytest.raises(ReplyError, match="at token 1 of 2"):
        tokens(sglang(token_ids=[11, 2], prompt_token_ids=[7], logprobs=logprobs))


@cases("content", [[{}, {}], [1, 2], [None, None], "ab", 3], ids=repr)
def test_logprobs_without_one_are_refused(content):
    with pytest.raises(ReplyError, match="logprob"):
        tokens(sglang(token_ids=[11, 2], prompt_token_ids=[7], logprobs={"content": content}))


def test_a_logprob_of_0_may_be_an_integer():
    logprobs = {"content": [{"logprob": 0}, {"logprob": -1}]}
    assert tokens(sglang(token_ids=[11, 2], prompt_token_ids=[7], logprobs=logprobs)).logprobs == (0.0, -1.0)


def test_ids_of_which_nobody_knows_what_came_before_are_refused_with_what_to_do():
    with pytest.raises(
        ReplyError, match=r"response_token_ids without prompt_token_ids.*--openai.server_type"
    ):
        tokens(sglang(response_token_ids=[11]))


@cases("value", [7, "7", {"0": 7}], ids=repr)
def test_ids_are_a_list(value):
    with pytest.raises(ReplyError, match="prompt_token_ids is no list"):
        tokens(sglang(token_ids=[1], prompt_token_ids=value))


def test_the_version_of_the_weights_is_read_where_it_is_told():
    body = sglang(meta_info={"weight_version": "v7"})
    assert read_reply(json.dumps(body).encode(), "p").weight_version == "v7"
    body = {**sglang(), "metadata": {"weight_version": "v8"}}
    assert read_reply(json.dumps(body).encode(), "p").weight_version == "v8"
