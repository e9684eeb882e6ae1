"""An API server with the CustomResourceDefinition in it: ``tests/cluster/cluster.sh up --api-only`` first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from api.api_server import ApiServer
from operator_glue.crd import custom_resource_definition

#: A schema is served a moment after it is stored, and nothing says when.
_SERVED_AFTER_S = 2


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    said = server.kube.run("apply", "-f", "-", stdin=json.dumps(custom_resource_definition()))
    server.kube.run("wait", "--for=condition=Established", "crd/modeldeployments.drainagent.io", "--timeout=30s")
    if "unchanged" not in said:
        time.sleep(_SERVED_AFTER_S)
    yield server
    server.close()
