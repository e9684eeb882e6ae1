"""The stand-in engine behind the stock sglang-gateway."""

from __future__ import annotations

from e2e.behind_a_router import BehindARouter


class TestSglangGateway(BehindARouter):
    router = "sglang-gateway"
