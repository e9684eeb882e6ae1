"""The command line of the operator. Parses, calls, prints; decides nothing."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from drainagent import __version__
from drainagent.podspec import Delivery
from drainagent.text import printable
from drainagent.workloads import name_of
from drainagent.workstation.inject import BadInputError, agent_image_of, read_input, write_out
from operator_glue.admission import Review, is_meant, review, warnings
from operator_glue.crd import custom_resource_definition
from operator_glue.facts import AGENT_IMAGE, ROUTING_PROXY_IMAGE, ClusterFacts
from operator_glue.install import HEALTH_PORT, METRICS_PORT, WEBHOOK_PORT, manifests
from operator_glue.install import Settings as InstallSettings
from operator_glue.manifest import Manifest, read_manifests, write_manifests
from operator_glue.model import KIND, ModelDeployment
from operator_glue.render import render
from operator_glue.warnings import Warning

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_Function = TypeVar("_Function", bound=Callable[..., Any])


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="drainagent-operator")
def cli() -> None:
    """Serves models in Kubernetes by replicas of vLLM or SGLang that leave without cutting a request.

    One resource, ModelDeployment, says what is wanted. All commands but run work without a cluster.
    """


@cli.command("crds")
def crds_command() -> None:
    """Print the CustomResourceDefinition.

    \b
      drainagent-operator crds | kubectl apply -f -
      kubectl explain mdep.spec.roles
    """
    write_out(write_manifests([custom_resource_definition()]))


_FILE = click.option(
    "-f", "--filename", "name", required=True, metavar="FILE|-", help="YAML or JSON; - is standard input."
)


@cli.command("validate")
@_FILE
def validate_command(name: str) -> None:
    """Say what a cluster would say of the ModelDeployments in a file.

    Every mistake gets a sentence with its field, in the API server's own words: those that the
    CustomResourceDefinition refuses, by schema or by rule, and those that the operator's webhook does. Other objects in
    the file are named and left aside. Warnings, of what is taken all the same, go to stderr.

    \b
      drainagent-operator validate -f llama.yaml
      helm template llama ./chart | drainagent-operator validate -f -

    \b
    Exit status:
      0  every ModelDeployment is taken
      1  one is refused, or there is none
      2  wrong usage, or input that cannot be read
    """
    lines: list[str] = []
    refused = False
    for manifest, found in _reviews(name):
        said = _said(manifest, found)
        refused |= bool(said)
        lines.append(f"{_who(manifest)}: {'refused' if said else 'taken'}")
        lines += [f"  {sentence}" for sentence in said]
        if found.deployment is not None:
            _warn(warnings(found.deployment, ClusterFacts()))
    write_out("".join(f"{printable(line)}\n" for line in lines))
    sys.exit(1 if refused else 0)


def _version(_: click.Context, __: click.Parameter, text: str) -> tuple[int, int]:
    match = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(\.\d+)?([-+].*)?", text, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{text[:100]!r} is no release such as 1.34")
    return int(match[1]), int(match[2])


def _kubernetes_options(function: _Function) -> _Function:
    """What is known of a cluster that is not asked."""
    facts = ClusterFacts()
    release = ".".join(map(str, facts.kubernetes))
    return click.option(
        "--kubernetes",
        default=release,
        show_default=True,
        metavar="RELEASE",
        callback=_version,
        help="The cluster's release: native sidecars from 1.29, image volumes from 1.35.",
    )(
        click.option(
            "--pod-ip-family",
            type=click.Choice(["4", "6"]),
            default=str(facts.pod_ip_family),
            show_default=True,
            help="Of the cluster's primary Pod network.",
        )(function)
    )


def _agent_options(function: _Function) -> _Function:
    """How the agent gets into engine Pods, and what else is set once for a cluster."""
    facts = ClusterFacts()
    for option in reversed(
        (
            click.option(
                "--delivery",
                type=click.Choice([item.value for item in Delivery]),
                default=facts.delivery.value,
                show_default=True,
                help="How the agent gets into the engine's container.",
            ),
            click.option(
                "--agent-image",
                metavar="REF",
                envvar="DRAINAGENT_AGENT_IMAGE",
                default=AGENT_IMAGE.reference,
                show_default=True,
                help="The image that carries the agent, where your cluster can pull it.",
            ),
            click.option(
                "--agent-image-pull-policy",
                type=click.Choice(["Always", "IfNotPresent", "Never"]),
                default=AGENT_IMAGE.pull_policy,
                show_default=True,
            ),
            click.option(
                "--agent-image-pull-secret", multiple=True, metavar="NAME", help="Added to the Pods; repeatable."
            ),
            click.option(
                "--own-python", is_flag=True, help="The agent image carries a Python for engines without one."
            ),
            click.option(
                "--routing-proxy-image",
                metavar="REF",
                default=ROUTING_PROXY_IMAGE,
                show_default=True,
                help="llm-d's proxy in front of a decoder.",
            ),
            click.option(
                "--mesh-classic-sidecar", is_flag=True, help="A mesh injects its proxy there as a plain container."
            ),
        )
    ):
        function = option(function)
    return function


def _facts(
    delivery: str,
    agent_image: str,
    agent_image_pull_policy: str,
    agent_image_pull_secret: tuple[str, ...],
    own_python: bool,
    routing_proxy_image: str,
    mesh_classic_sidecar: bool,
    kubernetes: tuple[int, int] = ClusterFacts.kubernetes,
    pod_ip_family: str = str(ClusterFacts.pod_ip_family),
) -> ClusterFacts:
    """Of the options' values."""
    how = Delivery(delivery)
    image = agent_image_of(how, agent_image, agent_image_pull_policy, agent_image_pull_secret)
    return ClusterFacts(
        kubernetes=kubernetes,
        pod_ip_family=int(pod_ip_family),
        delivery=how,
        agent_image=image or AGENT_IMAGE,
        own_python=own_python,
        routing_proxy_image=routing_proxy_image,
        mesh_classic_sidecar=mesh_classic_sidecar,
    )


@cli.command("render")
@_FILE
@_kubernetes_options
@_agent_options
def render_command(name: str, **given: Any) -> None:
    """Print what the operator would create for the ModelDeployments in a file.

    Pods, Services and the router's objects, as YAML on stdout; warnings on stderr. For reading and for a dry run: the
    owner is the ModelDeployment of a cluster, which this command does not ask.

    \b
      drainagent-operator render -f llama.yaml --kubernetes 1.34
      drainagent-operator render -f llama.yaml | kubectl create --dry-run=server -f -

    \b
    Exit status:
      0  done
      1  a ModelDeployment is refused, or there is none: nothing on stdout, and why on stderr
      2  wrong usage, or input that cannot be read
    """
    facts = _facts(**given)
    taken: list[ModelDeployment] = []
    refused = False
    for manifest, found in _reviews(name):
        said = _said(manifest, found)
        for sentence in said:
            click.echo(printable(f"{_who(manifest)}: {sentence}"), err=True)
        refused |= bool(said)
        if found.deployment is not None:
            taken.append(found.deployment)
    if refused:
        sys.exit(1)
    objects: list[dict[str, Any]] = []
    for deployment in taken:
        rendering = render(deployment, facts)
        objects += rendering.objects
        _warn([*rendering.warnings, *warnings(deployment, facts)])
    write_out(write_manifests(objects))


_NAMESPACES = click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Watch this namespace alone; repeatable. By itself: all.",
)


@cli.command("install")
@click.option(
    "--operator-namespace", default=InstallSettings.namespace, show_default=True, help="Where the operator itself runs."
)
@_NAMESPACES
@click.option(
    "--image", default=InstallSettings.image, show_default=True, metavar="REF", help="The operator's own image."
)
@click.option(
    "--image-pull-policy",
    type=click.Choice(["Always", "IfNotPresent", "Never"]),
    default=InstallSettings.image_pull_policy,
    show_default=True,
)
@click.option("--image-pull-secret", "image_pull_secrets", multiple=True, metavar="NAME", help="Repeatable.")
@click.option("--replicas", type=click.IntRange(1, 5), default=InstallSettings.replicas, show_default=True)
@click.option("--cert-manager", is_flag=True, help="cert-manager makes the webhooks' certificate.")
@click.option("--inject-only", is_flag=True, help="The webhook that gives Pods a drain hook, and nothing else.")
@click.option("--llm-d/--no-llm-d", default=True, show_default=True, help="With the rights for llm-d-router.")
@click.option("--kueue/--no-kueue", default=True, show_default=True, help="With the rights for Kueue's Workloads.")
@click.option(
    "--policies/--no-policies",
    default=True,
    show_default=True,
    help="With the admission policies that hold its pods/exec to the agent's check (Kubernetes 1.30).",
)
@_agent_options
def install_command(
    operator_namespace: str,
    namespaces: tuple[str, ...],
    image: str,
    image_pull_policy: str,
    image_pull_secrets: tuple[str, ...],
    replicas: int,
    cert_manager: bool,
    inject_only: bool,
    llm_d: bool,
    kueue: bool,
    policies: bool,
    **given: Any,
) -> None:
    """Print what installs the operator.

    \b
      drainagent-operator install --image REGISTRY/drainagent/operator:TAG \\
        --agent-image REGISTRY/drainagent/agent:TAG | kubectl apply -f -
    """
    facts = _facts(**given)
    try:
        settings = InstallSettings(
            namespace=operator_namespace,
            image=image,
            image_pull_policy=image_pull_policy,
            image_pull_secrets=image_pull_secrets,
            replicas=replicas,
            namespaces=namespaces,
            cert_manager=cert_manager,
            inject_only=inject_only,
            llm_d=llm_d,
            kueue=kueue,
            policies=policies,
            delivery=facts.delivery,
            agent_image=facts.agent_image,
            own_python=facts.own_python,
            routing_proxy_image=facts.routing_proxy_image,
            mesh_classic_sidecar=facts.mesh_classic_sidecar,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    write_out(write_manifests(manifests(settings)))


_PORT = click.IntRange(1, 65535)


@cli.command("run")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="KUBECONFIG",
    help="By itself: the Pod that this runs in.",
)
@_NAMESPACES
@click.option(
    "--operator-namespace",
    envvar="POD_NAMESPACE",
    default=InstallSettings.namespace,
    show_default=True,
    help="Of the Lease and the webhooks' certificate.",
)
@click.option("--inject-only", is_flag=True, help="The webhook that gives Pods a drain hook, and nothing else.")
@click.option(
    "--webhooks/--no-webhooks", default=None, help="Serve them. By itself: where this runs in a Pod of the cluster."
)
@click.option(
    "--certificates",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with tls.crt and tls.key, as cert-manager makes them. By itself: made, and renewed, here.",
)
@click.option("--llm-d/--no-llm-d", default=True, show_default=True, help="Look after llm-d-router's objects.")
@click.option("--kueue/--no-kueue", default=True, show_default=True, help="Look after Kueue's Workloads.")
@click.option("--metrics-port", type=_PORT, default=METRICS_PORT, show_default=True)
@click.option("--health-port", type=_PORT, default=HEALTH_PORT, show_default=True)
@click.option("--webhook-port", type=_PORT, default=WEBHOOK_PORT, show_default=True)
@click.option("--host", help="Listen on this address. By itself: on every one.")
@click.option(
    "--pod-ip-family", type=click.Choice(["4", "6"]), help="Of the cluster's Pod network. By itself: POD_IP's."
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@_agent_options
def run_command(
    kubeconfig: Path | None,
    namespaces: tuple[str, ...],
    operator_namespace: str,
    inject_only: bool,
    webhooks: bool | None,
    certificates: Path | None,
    llm_d: bool,
    kueue: bool,
    metrics_port: int,
    health_port: int,
    webhook_port: int,
    host: str | None,
    pod_ip_family: str | None,
    log_level: str,
    **given: Any,
) -> None:
    """Run the operator, in a cluster or with a kubeconfig.

    Several may run: one of them works, by a Lease; all of them answer webhooks. Logs are JSON lines on stderr.

    \b
    Exit status:
      0  it was told to end (SIGTERM, SIGINT)
      1  the cluster cannot be reached, a port is taken, or the Lease was lost
      2  wrong usage
    """
    from operator_glue.kube import KubeError
    from operator_glue.runtime import logs
    from operator_glue.runtime.process import Options, run

    if Delivery(given["delivery"]) is not Delivery.IN_IMAGE:
        source = click.get_current_context().get_parameter_source("agent_image")
        if source is click.core.ParameterSource.DEFAULT:
            raise click.UsageError(
                f"--agent-image is needed with --delivery {given['delivery']}: the image that carries the agent, as "
                f"this cluster can pull it"
            )
    if inject_only and (namespaces or webhooks is False):
        raise click.UsageError("--inject-only watches no namespace, and is a webhook: not beside the option for either")
    family = pod_ip_family or ("6" if ":" in os.environ.get("POD_IP", "") else "4")
    facts = _facts(**given, pod_ip_family=family)
    logs.set_up(log_level)
    options = Options(
        facts=facts,
        own_namespace=operator_namespace,
        identity=os.environ.get("POD_NAME") or socket.gethostname(),
        namespaces=tuple(dict.fromkeys(namespaces)),
        webhooks=inject_only or (kubeconfig is None if webhooks is None else webhooks),
        certificates=certificates,
        inject_only=inject_only,
        llm_d=llm_d,
        kueue=kueue,
        health_port=health_port,
        metrics_port=metrics_port,
        webhook_port=webhook_port,
        host=host,
    )
    try:
        status = asyncio.run(run(kubeconfig, options))
    except (KubeError, OSError) as error:
        click.echo(f"drainagent-operator run: {error}", err=True)
        status = 1
    sys.exit(status)


def _reviews(name: str) -> list[tuple[Manifest, Review]]:
    """Each ModelDeployment of a file with what admission says of it. Ends the command when there is none."""
    try:
        manifests = read_manifests(read_input(name))
    except ValueError as error:
        raise BadInputError(f"-f {name}: {error}") from None
    found = []
    for manifest in manifests:
        judged = review(manifest.data)
        if _is_another(manifest):
            click.echo(printable(f"left aside: {judged.faults[0].sentence} (line {manifest.line})"), err=True)
        else:
            found.append((manifest, judged))
    if not found:
        click.echo(f"-f {name}: there is no {KIND} in it", err=True)
        sys.exit(1)
    return found


def _is_another(manifest: Manifest) -> bool:
    """A whole object that is not meant to be ours. With keys twice it may be two, for want of a --- between them."""
    data = manifest.data
    if not isinstance(data, dict) or is_meant(data) or manifest.repeated:
        return False
    return bool(data.get("apiVersion") and data.get("kind"))


def _said(manifest: Manifest, found: Review) -> list[str]:
    """Every sentence against a document: of its YAML, then of what it holds."""
    repeated = [
        f"line {again}: the key {key} is there already (line {first}), and kubectl takes the last one alone"
        for key, first, again in manifest.repeated
    ]
    return [*repeated, *(fault.sentence for fault in found.faults)]


def _who(manifest: Manifest) -> str:
    named = name_of(manifest.data) if isinstance(manifest.data, dict) else "document"
    return f"{named} (line {manifest.line})"


def _warn(found: Iterable[Warning]) -> None:
    for warning in dict.fromkeys(found):
        where = f"{warning.path}: " if warning.path else ""
        click.echo(printable(f"warning: {where}{warning.message}"), err=True)


def main(args: Sequence[str]) -> None:
    """Run the command line ``args`` and exit with its status."""
    cli.main(args=list(args), prog_name="drainagent-operator")
