"""The stand-in engine behind the stock vllm-router."""

from __future__ import annotations

from e2e.behind_a_router import BehindARouter


class TestVllmRouter(BehindARouter):
    router = "vllm-router"
