"""The API server of tests/cluster, asked directly: a dry run takes 5 ms, and its answer is taken apart."""

from __future__ import annotations

import base64
import http.client
import importlib
import json
import ssl
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))
kube = importlib.import_module("kube")

_PATH = "/apis/drainagent.io/v1alpha1/namespaces/default/modeldeployments?dryRun=All&fieldValidation=Strict"


@dataclass(frozen=True)
class Answer:
    """``causes``: (field, what is said of it). ``object``: what would be stored, where it is taken."""

    status: int
    message: str
    causes: frozenset[tuple[str, str]]
    object: dict[str, Any]

    @property
    def taken(self) -> bool:
        return self.status == 201

    @property
    def rules_were_checked(self) -> bool:
        """False where the API server stopped before its CEL rules."""
        return "some validation rules were not checked" not in self.message

    @property
    def unknown_fields(self) -> frozenset[str]:
        """Those of a strict decoding error, which is all that is said then."""
        words = self.message.partition("strict decoding error: ")[2].split(", ")
        return frozenset(word for word in words if word.startswith("unknown field "))


class ApiServer:
    """One connection, kept."""

    def __init__(self) -> None:
        self.kube: Any = kube.Kube.of_cluster()
        config = json.loads(self.kube.run("config", "view", "--raw", "-o", "json"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cadata=_decoded(cluster["certificate-authority-data"]))
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(_decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"]))
            file.flush()
            context.load_cert_chain(file.name)
        host = cluster["server"].removeprefix("https://")
        self._connection = http.client.HTTPSConnection(host, context=context, timeout=30)

    def dry_run(self, document: Any) -> Answer:
        """What the API server says to the creation of a document."""
        self._connection.request("POST", _PATH, json.dumps(document), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        causes = (answer.get("details") or {}).get("causes") or [] if response.status >= 400 else []
        return Answer(
            status=response.status,
            message=str(answer.get("message", "")),
            causes=frozenset((cause.get("field", ""), cause.get("message", "")) for cause in causes),
            object=answer,
        )

    def close(self) -> None:
        self._connection.close()


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()
