"""The weights of a mock server: a version alone, which another process may change, as it would SGLang's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from environments.policy.mock.mock_refusal import RefusalError, authorize

DEFAULT_VERSION = "default"
"""Of vLLM and SGLang, until somebody names another."""


@dataclass(slots=True, kw_only=True)
class MockWeights:
    """Which weights a server has now. Only `POST /update_weight_version` changes them."""

    api_key: str | None
    version: str = DEFAULT_VERSION

    def route(self) -> Route:
        """SGLang's path: `{"new_version": "step-2"}`."""
        return Route("/update_weight_version", self._update, methods=["POST"])

    def sglang(self) -> dict[str, Any]:
        """What a chat reply of SGLang says beside its choices."""
        return {"metadata": {"weight_version": self.version}}

    def vllm(self, asked: Mapping[str, Any], sampled: int) -> dict[str, Any]:
        """What a choice of vLLM says of so many sampled tokens, where it is asked."""
        if not asked.get("return_weight_versions"):
            return {}
        return {"weight_versions": [{"version": self.version, "start": 0, "end": sampled}]}

    async def _update(self, request: Request) -> JSONResponse:
        authorize(request, self.api_key)
        try:
            version: object = orjson.loads(await request.body())["new_version"]
        except (ValueError, LookupError, TypeError) as error:
            raise RefusalError(400, "new_version is missing") from error
        if not isinstance(version, str):
            raise RefusalError(400, "new_version is no text")
        self.version = version
        return JSONResponse({"success": True, "new_version": version})
