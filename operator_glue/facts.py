"""What the renderer knows of the cluster and of the operator's settings. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from drainagent import __version__
from drainagent.podspec import AgentImage, Delivery

#: Native sidecars (a restartable init container) are on by default from here on (Kubernetes' SidecarContainers gate).
NATIVE_SIDECARS = (1, 29)
#: Image volumes are on by default from here on (Kubernetes' ImageVolume gate).
IMAGE_VOLUMES = (1, 35)

#: The carrier that images/ builds; a cluster's operator names the registry it is in.
AGENT_IMAGE = AgentImage(f"drainagent/agent:{__version__}")
#: llm-d-router 0.10.0's proxy for decoders.
ROUTING_PROXY_IMAGE = "ghcr.io/llm-d/llm-d-router-disagg-sidecar:v0.10.0"


@dataclass(frozen=True)
class ClusterFacts:
    """``kubernetes``: (major, minor). ``pod_ip_family``: 4 or 6, of the cluster's primary Pod network.

    ``delivery``, ``agent_image``: how the agent gets into engine Pods; the image is not looked at when it is in the
    engine's. ``own_python``: the agent's image brings an interpreter, for engine images without python3.
    ``routing_proxy_image``: the proxy in front of a direct decoder. ``mesh_classic_sidecar``: a mesh injects its proxy
    into the namespace as a classic container.
    ``inference_pool``: the CustomResourceDefinition of llm-d-router's InferencePool is installed.
    """

    kubernetes: tuple[int, int] = (1, 34)
    pod_ip_family: int = 4
    delivery: Delivery = Delivery.INIT_CONTAINER
    agent_image: AgentImage = AGENT_IMAGE
    own_python: bool = False
    routing_proxy_image: str = ROUTING_PROXY_IMAGE
    mesh_classic_sidecar: bool = False
    inference_pool: bool = True

    @property
    def native_sidecars(self) -> bool:
        return self.kubernetes >= NATIVE_SIDECARS
