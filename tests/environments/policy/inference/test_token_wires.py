from dataclasses import replace

import orjson
import pytest

from environments.policy.inference.chat_reply import ReplyError
from environments.policy.inference.token_wires import WIRES, TokenRequest
from environments.trajectory import WeightSpan
from tests.tables import cases

PROMPT = (5, 6, 7)
REQUEST = TokenRequest(
    model="m",
    prompt_json=(b"5,6", b",", b"7"),
    prompt_tokens=3,
    max_tokens=4,
    seed=9,
    stop_ids=(2,),
    sampling={"temperature": 0.5, "top_p": 1.0, "top_k": 3},
    more={"cache_salt": "s"},
)
COMPLETIONS, GENERATE = WIRES["vllm", "completions"], WIRES["vllm", "generate"]
SGLANG, SGLANG_CHAT = WIRES["sglang", "generate"], WIRES["sglang", "chat"]
LLAMA_CPP = WIRES["llama.cpp", "completion"]


def completions(**changes):
    choice = {
        "index": 0,
        "text": "",
        "finish_reason": "stop",
        "stop_reason": 2,
        "logprobs": {"token_logprobs": [-0.1, -0.30000000000000004], "tokens": ["token_id:11", "token_id:2"]},
        "token_ids": [11, 2],
        "prompt_token_ids": list(PROMPT),
    }
    return {"choices": [choice | changes], "usage": {"prompt_tokens": 3}}


def generate(**changes):
    entries = [{"token_id": 11, "logprob": -0.1}, {"token_id": 2, "logprob": -0.30000000000000004}]
    choice = {"finish_reason": "stop", "token_ids": [11, 2], "logprobs": {"content": entries}}
    return {"request_id": "r", "choices": [choice | changes], "prompt_logprobs": None}


def sglang(**changes):
    meta = {
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 3,
        "weight_version": "v7",
        "output_token_logprobs": [[-0.1, 11, None], [-0.30000000000000004, 2, None]],
    }
    return {"text": "", "output_ids": [11, 2], "meta_info": meta | changes}


def sglang_chat(**changes):
    choice = {
        "finish_reason": "stop",
        "matched_stop": 2,
        "response_token_ids": [11, 2],
        "prompt_token_ids": list(PROMPT),
        "logprobs": {
            "content": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -0.30000000000000004}]
        },
    }
    return {"choices": [choice | changes], "usage": {"prompt_tokens": 3}}


def llama_cpp(**changes):
    entries = [{"id": 11, "logprob": -0.1}, {"id": 2, "logprob": -0.30000000000000004}]
    given = {"tokens": [11, 2], "completion_probabilities": entries, "tokens_evaluated": 3}
    return {**given, "stop_type": "eos", "stopping_word": "", **changes}


REPLIES = [
    (COMPLETIONS, completions),
    (GENERATE, generate),
    (SGLANG, sglang),
    (SGLANG_CHAT, sglang_chat),
    (LLAMA_CPP, llama_cpp),
]
each_wire = pytest.mark.parametrize(
    ("wire", "reply"), REPLIES, ids=["completions", "generate", "sglang", "sglang-chat", "llama.cpp"]
)


def read(wire, reply, request=REQUEST):
    return wire.read(reply if isinstance(reply, bytes) else orjson.dumps(reply), request)


@each_wire
def test_ids_and_logprobs_are_read_as_they_are(wire, reply):
    given = read(wire, reply())
    assert (given.token_ids, given.logprobs) == ((11, 2), (-0.1, -0.30000000000000004))
    assert given.finish_reason == "stop"


@each_wire
def test_what_ended_a_turn_is_read(wire, reply):
    assert read(wire, reply()).stopped_by == (None if reply is generate else 2)


def test_an_older_generate_names_ids_as_text():
    entries = [{"token": "token_id:11", "logprob": -0.1}, {"token": "token_id:2", "logprob": -0.2}]
    assert read(GENERATE, generate(logprobs={"content": entries})).logprobs == (-0.1, -0.2)


def test_the_versions_of_a_completion_that_lived_through_an_update_are_all_named():
    spans = [{"version": "v7", "start": 0, "end": 1}, {"version": "v8", "start": 1, "end": 2}]
    assert read(COMPLETIONS, completions(weight_versions=spans)).weight_version == "v7 → v8"


@pytest.mark.parametrize(
    ("told", "spans"),
    [
        (
            [("v7", 0, 1), ("v8", 1, 2)],
            (WeightSpan(start=0, version="v7"), WeightSpan(start=1, version="v8")),
        ),
        ([("v7", 0, 2)], ()),
        ([("v7", 0, 1), ("v7", 1, 2)], ()),
        ([("v7", 1, 2), ("v8", 0, 1)], ()),
        ([("v7", None, None), ("v8", 1, 2)], ()),
    ],
    ids=["changed", "one", "same", "in_no_order", "unknown_where"],
)
def test_where_the_weights_changed_in_a_completion_is_read(told, spans):
    given = [{"version": version, "start": start, "end": end} for version, start, end in told]
    assert read(COMPLETIONS, completions(weight_versions=given)).weight_spans == spans


def test_sglang_says_its_weight_version():
    assert read(SGLANG, sglang()).weight_version == "v7"


def test_a_body_is_joined_from_the_ids_that_are_there():
    body = orjson.loads(COMPLETIONS.body(REQUEST))
    assert body == {
        "prompt": [5, 6, 7], "cache_salt": "s", "temperature": 0.5, "top_p": 1.0, "top_k": 3, "model": "m",
        "max_tokens": 4, "seed": 9, "stop_token_ids": [2], "logprobs": 0, "return_token_ids": True,
    }  # fmt: skip


def test_generate_has_what_shapes_sampling_in_one_place():
    body = orjson.loads(GENERATE.body(REQUEST))
    assert body["sampling_params"] == {
        "temperature": 0.5, "top_p": 1.0, "top_k": 3, "max_tokens": 4, "seed": 9, "stop_token_ids": [2],
        "logprobs": 0, "detokenize": False,
    }  # fmt: skip
    assert (body["token_ids"], body["cache_salt"], "top_k" in body) == ([5, 6, 7], "s", False)


def test_sglang_has_what_shapes_sampling_in_one_place():
    body = orjson.loads(SGLANG.body(REQUEST))
    assert body["sampling_params"] == {
        "temperature": 0.5, "top_p": 1.0, "top_k": 3, "max_new_tokens": 4, "sampling_seed": 9,
        "stop_token_ids": [2], "skip_special_tokens": False,
    }  # fmt: skip
    assert (body["input_ids"], body["return_logprob"]) == ([5, 6, 7], True)


def test_llama_cpp_samples_from_the_whole_distribution():
    body = orjson.loads(LLAMA_CPP.body(replace(REQUEST, sampling={"temperature": 1.0, "top_p": 1.0})))
    sent = {name: body[name] for name in ("temperature", "top_p", "top_k", "min_p", "repeat_penalty")}
    assert sent == {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}


def test_a_setting_of_the_user_goes_before_that_of_llama_cpps_whole_distribution():
    assert orjson.loads(LLAMA_CPP.body(REQUEST))["top_k"] == 3


def test_the_tokens_of_a_stop_string_whose_logprobs_llama_cpp_drops_leave_the_turn():
    stopped = llama_cpp(tokens=[11, 2, 12, 13], stop_type="word", stopping_word="I")
    given = read(LLAMA_CPP, stopped)
    assert (given.token_ids, given.finish_reason, given.stopped_by) == ((11, 2), "stop", "I")


REFUSED = [
    ("no-json", COMPLETIONS, b"{", "no JSON"),
    ("list", COMPLETIONS, b"[]", "no completion"),
    ("nan", COMPLETIONS, b'{"choices":[{"logprobs":{"token_logprobs":[NaN]}}]}', "no JSON"),
    ("no-choice", COMPLETIONS, {"choices": []}, "choices are missing or empty"),
    ("two", COMPLETIONS, {"choices": [{}, {}]}, "2 choices"),
    ("no-ids", COMPLETIONS, completions(token_ids=None), "no token_ids, which vLLM gives from 0.10.2"),
    ("empty", COMPLETIONS, completions(token_ids=[]), "empty token_ids"),
    ("text", GENERATE, generate(token_ids="11 2"), "token_ids is not a list"),
    ("too-many", COMPLETIONS, completions(token_ids=[1] * 5), "5 token ids; 4 were asked for"),
    (
        "prompt",
        COMPLETIONS,
        completions(prompt_token_ids=[5, 6, 8]),
        "other prompt ids than were sent, the first at 2",
    ),
    ("no-prompt", COMPLETIONS, completions(prompt_token_ids=[]), "than were sent: 0 for 3"),
    (
        "counted",
        COMPLETIONS,
        {**completions(), "usage": {"prompt_tokens": 4}},
        "saw 4 prompt tokens; 3 were sent",
    ),
    (
        "no-numbers",
        SGLANG,
        sglang(finish_reason={"type": "stop", "matched": "NaN happened"}),
        "gave up (NaN happened)",
    ),
    ("no-numbers-chat", SGLANG_CHAT, sglang_chat(matched_stop="NaN happened"), "gave up (NaN happened)"),
    ("counted-sglang", SGLANG, sglang(prompt_tokens=4), "saw 4 prompt tokens; 3 were sent"),
    ("no-logprobs", COMPLETIONS, completions(logprobs=None), "no logprobs"),
    ("one-short", COMPLETIONS, completions(logprobs={"token_logprobs": [-1]}), "1 logprobs for 2 token_ids"),
    (
        "shifted",
        GENERATE,
        generate(logprobs={"content": [{"token_id": 2, "logprob": -1}] * 2}),
        "token 0 is of 2",
    ),
    ("shifted-sglang", SGLANG, sglang(output_token_logprobs=[[-1, 2, None]] * 2), "token 0 is of 2"),
    ("pairs", SGLANG, sglang(output_token_logprobs=[-1, -2]), "not a list of (logprob, id, text)"),
    ("one-short-llama", LLAMA_CPP, llama_cpp(tokens=[11, 2, 3]), "2 logprobs for 3 token ids"),
    ("shifted-llama", LLAMA_CPP, llama_cpp(tokens=[2, 2]), "token 0 is of 11"),
    ("counted-llama", LLAMA_CPP, llama_cpp(tokens_evaluated=4), "saw 4 prompt tokens; 3 were sent"),
    (
        "stop-string-alone",
        LLAMA_CPP,
        llama_cpp(completion_probabilities=[], stop_type="word", stopping_word="I"),
        "the turn is the stop string 'I' alone",
    ),
    ("abort", COMPLETIONS, completions(finish_reason="abort"), "gave up (finish_reason 'abort')"),
    (
        "abort-sglang",
        SGLANG,
        sglang(finish_reason={"type": "abort", "message": "out of\nmemory"}),
        "'abort'): out of memory",
    ),
    ("abort-llama", LLAMA_CPP, llama_cpp(stop_type="abort"), "gave up (finish_reason 'abort')"),
    ("odd", SGLANG, sglang(finish_reason="content_filter"), "gave up (finish_reason 'content_filter')"),
]


@cases(("wire", "reply", "message"), [each[1:] for each in REFUSED], ids=[e[0] for e in REFUSED])
def test_a_reply_that_does_not_fit_together_is_refused_in_a_line(wire, reply, message):
    with pytest.raises(ReplyError) as refused:
        read(wire, reply)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("spaced", [False, True], ids=["compact", "spaced"])
def test_the_echo_of_a_prompt_may_be_written_in_any_way(spaced):
    content = orjson.dumps(completions(), option=orjson.OPT_INDENT_2 if spaced else None)
    assert read(COMPLETIONS, content).token_ids == (11, 2)


def test_a_prompt_that_begins_like_the_echo_is_another_one():
    with pytest.raises(ReplyError, match="other prompt ids"):
        read(COMPLETIONS, completions(prompt_token_ids=[5, 6, 71]))
