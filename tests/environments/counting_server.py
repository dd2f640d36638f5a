"""A model server whose tokenizer counts otherwise than ours, and whose window refuses what is too long."""

from environments.policy.mock_server import ChatRequest
from tests.environments.exploring import RENDERER
from tests.equipment.quirky_server import Quirk, QuirkyServer
from tests.equipment.server_quirks import openai_error


class Counting:
    """Around a mock server: counts `fixed + ratio` per token of ours, with a window or without."""

    def __init__(self, *, ratio, fixed=0, window=None, counts=True):
        self.ratio, self.fixed, self.window, self.counts = ratio, fixed, window, counts
        self.prompts = []
        """What it counted in each request."""
        self.refused = 0

    def __call__(self, app):
        quirk = Quirk(says="counts otherwise", refuses=self._refuses, replies=self._replies)
        return QuirkyServer(app, [quirk])

    def _refuses(self, asked):
        read = ChatRequest.model_validate(asked)
        call = read.to_call()
        ours = RENDERER.prompt_tokens(call.messages, call.tools)
        self.prompts.append(self.fixed + round(self.ratio * ours))
        if self.window is None or self.prompts[-1] + (read.max_tokens or 0) <= self.window:
            return None
        self.refused += 1
        return openai_error(400, f"This model's maximum context length is {self.window} tokens.")

    def _replies(self, reply):
        if self.counts:
            reply["usage"]["prompt_tokens"] = self.prompts[-1]
        else:
            del reply["usage"]
        reply.pop("prompt_token_ids", None)
        for choice in reply["choices"]:
            choice["logprobs"] = None
            choice.pop("token_ids", None)


def doubled(app):
    """Around a mock server: one whose tokenizer makes two tokens of each of ours, and gives their ids."""
    return QuirkyServer(app, [Quirk(says="two ids for one", replies=_double)])


def _double(reply):
    reply["prompt_token_ids"] = _twice(reply["prompt_token_ids"])
    for choice in reply["choices"]:
        choice["token_ids"] = _twice(choice["token_ids"])
        choice["logprobs"]["content"] = _twice(choice["logprobs"]["content"])


def _twice(values):
    return [value for value in values for _ in range(2)]
