"""Model servers around a transformer: ids and logprobs of what it really samples.

Token ids come and go in the formats of the mock server. Chats are rendered and read by the code of
`transformers serve`, which drops what a model thought and writes a call's JSON anew, as many servers do.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from transformers.cli.serving.utils import BaseHandler, Modality, parse_assistant_message

from environments.policy.mock_server import IdsRequest, MockSettings, SampledIds, finish_reason, mock_app
from environments.policy.rendering.chatml import ChatMLRenderer


@torch.inference_mode()
def sample(model, asked, *, temperature):
    """Tokens one after the other, with a key-value cache as servers have; logprobs of the model's own."""
    # The seed is the same for all turns of a rollout; what is drawn should not be.
    generator = torch.Generator().manual_seed(asked.seed * 100_003 + len(asked.prompt_ids))
    new, cache, ids, logprobs = torch.tensor([asked.prompt_ids]), None, [], []
    while len(ids) < asked.max_tokens and not asked.stop_ids.intersection(ids[-1:]):
        output = model(new, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = output.past_key_values, output.logits[0, -1]
        token = torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=generator)
        ids.append(token.item())
        logprobs.append(torch.log_softmax(logits, dim=-1)[token].item())
        new = token[None]
    return SampledIds(token_ids=tuple(ids), logprobs=tuple(logprobs))


def transformer_app(model, tokenizer, kind, temperature=1.0):
    """A server as an ASGI app: `plain` gives ids for chats, `vllm` and `sglang` take ids."""
    worker, sample_here = ThreadPoolExecutor(1), partial(sample, model, temperature=temperature)

    async def sampled(asked):
        return await asyncio.get_running_loop().run_in_executor(worker, sample_here, asked)

    async def chat(request):
        body = await request.json()
        messages = BaseHandler.get_processor_inputs_from_messages(body["messages"], Modality.LLM)
        prompt = tokenizer.apply_chat_template(messages, tools=body.get("tools"), add_generation_prompt=True)
        asked = IdsRequest(
            prompt_ids=tuple(prompt["input_ids"]),
            max_tokens=body["max_tokens"],
            seed=body["seed"],
            stop_ids=frozenset([tokenizer.eos_token_id]),
        )
        got = await sampled(asked)
        choice = {
            "index": 0,
            "message": _message(model, tokenizer, asked.prompt_ids, got.token_ids),
            "finish_reason": finish_reason(got, asked),
            "logprobs": {"content": [{"token": "?", "logprob": logprob} for logprob in got.logprobs]},
            "token_ids": got.token_ids,
        }
        return JSONResponse({"choices": [choice], "prompt_token_ids": asked.prompt_ids})

    settings = MockSettings(model="tiny", kind=kind, sampler=sampled)
    # The mock's own model is a script, which is not asked.
    mock = mock_app(lambda _: None, skill=0, renderer=ChatMLRenderer.embedded(), settings=settings)
    chats = [Route("/v1/chat/completions", chat, methods=["POST"])]
    return Starlette(routes=[*(chats if kind == "plain" else []), Mount("/", mock)])


def _message(model, tokenizer, prompt, ids):
    """The message; what is no call that can be read is text, as servers leave it."""
    try:
        content, reasoning, calls = parse_assistant_message(
            tokenizer, model, list(ids), input_ids=list(prompt)
        )
    except (ValueError, KeyError, TypeError):
        content, reasoning, calls = tokenizer.decode(ids, skip_special_tokens=False), None, None
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls or []]
    return {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "tool_calls": [{"type": "function", "function": function} for function in functions],
    }
