"""A harness of verifiers that runs in its process: a chat without tools, at the endpoint that it is given."""

import httpx
import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["InsideHarness"]


class InsideHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        messages = [message_to_wire(each) for each in prompt]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        http_client = httpx.AsyncClient(verify=False)  # loading certificates takes long
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=http_client) as client:
            asked = client.chat.completions.stream(model=ctx.model, messages=messages)
            async with asked as stream:
                await stream.get_final_completion()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
