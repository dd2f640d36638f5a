"""A model server around a transformer: ids and logprobs of what it really samples, in vLLM's shapes.

Chat requests are rendered and their replies parsed by the code of `transformers serve`, which drops what a
model thought and writes a call's JSON anew, as many servers do.
"""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers.cli.serving.utils import BaseHandler, Modality, parse_assistant_message


@dataclass(frozen=True, kw_only=True)
class Sampled:
    ids: list[int]
    logprobs: list[float]
    finish_reason: str


@torch.inference_mode()
def sample(model, prompt, *, seed, temperature, top_p, max_tokens, stop_ids, raw_logprobs):
    """Tokens one after the other, with a key-value cache as every server has."""
    # The seed is the same for all turns of a rollout; what is drawn should not be.
    generator = torch.Generator().manual_seed(seed * 100_003 + len(prompt))
    new, cache, ids, logprobs = torch.tensor([prompt]), None, [], []
    while len(ids) < max_tokens:
        output = model(new, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = output.past_key_values, output.logits[0, -1]
        shaped = _nucleus(torch.log_softmax(logits / temperature, dim=-1), top_p)
        token = torch.multinomial(shaped.exp(), 1, generator=generator)
        told = torch.log_softmax(logits, dim=-1) if raw_logprobs else shaped
        ids.append(token.item())
        logprobs.append(told[token].item())
        if ids[-1] in stop_ids:
            return Sampled(ids=ids, logprobs=logprobs, finish_reason="stop")
        new = token[None]
    return Sampled(ids=ids, logprobs=logprobs, finish_reason="length")


def _nucleus(logprobs, top_p):
    if top_p >= 1:
        return logprobs
    best = logprobs.sort(descending=True)
    outside = best.values.exp().cumsum(-1) - best.values.exp() >= top_p
    return torch.log_softmax(logprobs.index_fill(-1, best.indices[outside], -torch.inf), dim=-1)


def transformer_app(model, tokenizer, *, name="tiny", raw_logprobs=False):
    """The server as an ASGI app.

    Args:
        model: samples.
        tokenizer: renders chats.
        name: the one that requests ask for.
        raw_logprobs: report the model's own distribution, not the one that was sampled from.
    """
    worker = ThreadPoolExecutor(1)
    stop_ids = {tokenizer.eos_token_id}

    async def models(request):
        window = model.config.max_position_embeddings
        entry = {"id": name, "object": "model", "owned_by": "vllm", "max_model_len": window}
        return JSONResponse({"object": "list", "data": [entry]})

    async def sampled(body, prompt):
        asked = dict(
            seed=body["seed"],
            temperature=body["temperature"],
            top_p=body["top_p"],
            max_tokens=body["max_tokens"],
            stop_ids=stop_ids | set(body.get("stop_token_ids") or []),
            raw_logprobs=raw_logprobs,
        )
        work = asyncio.get_running_loop().run_in_executor(worker, lambda: sample(model, prompt, **asked))
        return await work

    async def completions(request):
        body = await request.json()
        assert body["return_token_ids"]
        got = await sampled(body, body["prompt"])
        choice = {
            "index": 0,
            "text": tokenizer.decode(got.ids, skip_special_tokens=True),
            "finish_reason": got.finish_reason,
            "logprobs": {"tokens": tokenizer.convert_ids_to_tokens(got.ids), "token_logprobs": got.logprobs},
            "prompt_token_ids": body["prompt"],
            "token_ids": got.ids,
        }
        return JSONResponse({"object": "text_completion", "model": name, "choices": [choice]})

    async def chat(request):
        body = await request.json()
        assert body["return_token_ids"]
        messages = BaseHandler.get_processor_inputs_from_messages(body["messages"], Modality.LLM)
        prompt = tokenizer.apply_chat_template(
            messages, tools=body.get("tools"), add_generation_prompt=True, return_dict=True
        )["input_ids"]
        got = await sampled(body, prompt)
        choice = {
            "index": 0,
            "message": _parsed(model, tokenizer, prompt, got.ids),
            "finish_reason": got.finish_reason,
            "logprobs": {"content": [{"token": "", "logprob": logprob} for logprob in got.logprobs]},
            "token_ids": got.ids,
        }
        reply = {"object": "chat.completion", "model": name, "choices": [choice]}
        return JSONResponse(reply | {"prompt_token_ids": prompt})

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ]
    )


def _parsed(model, tokenizer, prompt, ids):
    """The message; what is no call that can be read is text, as servers leave it."""
    try:
        content, reasoning, calls = parse_assistant_message(tokenizer, model, ids, input_ids=prompt)
    except (ValueError, KeyError, TypeError):
        content, reasoning, calls = tokenizer.decode(ids, skip_special_tokens=False), None, None
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{len(prompt)}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(calls)
        ]
    return message
