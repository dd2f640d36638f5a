import random

import pytest

from environments.policy.base import CompletionRequest, OpenRow
from environments.policy.mock_server import MockSettings, SampledIds, mock_app
from environments.policy.rendering.chatml import ChatMLRenderer
from tests.environments.policy.rendering.family_formats import families, renderer_of
from tests.environments.policy.rendering.test_family_rows import TOOLS, chats
from tests.environments.policy.token_server import token_policy
from tests.equipment.running_server import running_server


class Playback:
    """A model that samples what it is told to, and remembers what it saw."""

    def __init__(self):
        self.next_ids = ()
        self.seen = []

    async def sample(self, asked):
        rng = random.Random(len(self.seen))
        logprobs = tuple(-rng.random() for _ in self.next_ids)
        self.seen.append((asked.prompt_ids, self.next_ids, logprobs))
        return SampledIds(token_ids=self.next_ids, logprobs=logprobs)


@pytest.mark.parametrize("family", families())
async def test_a_row_is_the_ids_that_were_sent_and_sampled(family):
    model, renderer = Playback(), renderer_of(family)
    settings = MockSettings(kind="vllm", sampler=model.sample)
    app = mock_app(lambda _: None, skill=1, renderer=ChatMLRenderer.embedded(), settings=settings)
    async with running_server(app) as url:
        policy = token_policy(url, ("vllm", "completions"), renderer=renderer)
        for chat, turns in chats(family, 50):
            row, messages = OpenRow(), chat.prompt
            for _, calls, sampled in turns:
                model.next_ids = sampled
                request = CompletionRequest(messages=messages, tools=TOOLS, row=row)
                completion = await policy.complete(request)
                assert completion.fork is None
                messages = (*messages, completion.message)
                row.extend(completion.prompt_ids, completion.token_ids, messages=len(messages))
                prompt_ids, sampled_ids, logprobs = model.seen[-1]
                assert tuple(row.token_ids) == (*prompt_ids, *sampled_ids)
                assert tuple(row.token_ids[row.sampled_start :]) == sampled
                assert completion.logprobs == logprobs
                spans = [call.span for call in completion.message.tool_calls]
                assert spans == [call.span for call in renderer.parse(sampled, TOOLS).tool_calls]
                messages = (*messages, *chat.answers(calls))
        await policy.aclose()
