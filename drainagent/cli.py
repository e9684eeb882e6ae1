"""The command line. Parses, calls, prints; decides nothing."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

import click

from drainagent import __version__
from drainagent.hook_options import HOOK_OPTIONS, HookOption

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

#: What is not shipped into engine containers.
_WORKSTATION = "drainagent.workstation"
#: Where the other commands are: imported only when called.
_ELSEWHERE = {
    "demo": ("drainagent.workstation.demo", "demo_command"),
    "plan": ("drainagent.workstation.plan", "plan_command"),
    "inject": ("drainagent.workstation.inject", "inject_command"),
    "check": ("drainagent.check", "check_command"),
    "gauges": ("drainagent.gauges", "gauges_command"),
    "completion": ("drainagent.completion", "completion_command"),
}


class _Commands(click.Group):
    """Imports a command's module when it is called, so that the hook pays for nothing it does not use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        names = ["hook", "check", "gauges", "plan", "inject", "demo", "completion"]
        if importlib.util.find_spec(_WORKSTATION) is not None:
            return names
        return [name for name in names if not _ELSEWHERE.get(name, ("",))[0].startswith(_WORKSTATION)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in _ELSEWHERE:
            module, attribute = _ELSEWHERE[name]
            try:
                command = getattr(importlib.import_module(module), attribute)
            except ModuleNotFoundError as error:
                if error.name != _WORKSTATION:
                    raise
                raise click.UsageError(
                    f"{name} is not in the agent that ships into engine containers; run it where drainagent is "
                    f"installed (pip install)"
                ) from None
            assert isinstance(command, click.Command)
            return command
        return super().get_command(ctx, name)


@click.group(cls=_Commands, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="drainagent")
def cli() -> None:
    """Lets a vLLM or SGLang replica leave Kubernetes without cutting a request."""


def _click_option(option: HookOption) -> click.Option:
    name = f"{option.name}/--no-{option.name.removeprefix('--')}" if option.negatable else option.name
    return click.Option(
        [name, option.field],
        metavar=option.metavar,
        is_flag=option.metavar is None,
        default=None,
        multiple=option.repeatable,
        help=option.help,
    )


# For help and completion: the hook reads its arguments by itself (drainagent.hook_options), since a wrong one must not
# end it, and gets here only when help is asked for.
@cli.command("hook", params=[_click_option(option) for option in HOOK_OPTIONS])
def hook_command(**_: object) -> None:
    """Wait until this replica is idle: the preStop hook.

    Run by the kubelet inside the engine's container when its Pod is deleted. It lets SIGTERM come when nothing is left
    to abort:

    \b
      0 to 5 s         the engine serves as before; nothing is read
      5 s to G - 5     one read a second; back on the second idle read in a row
      G - 5            no read starts after this
      G - 3            the hook is back, whatever happens
    G is --grace. An idle replica's hook returns about 6 s after the delete.

    A read is idle when the engine's gauges are zero and no request is in flight: no client is connected, or the
    engine's own request counter is at zero.

    \b
    Exit status:
      0  idle, deadline, unmeasurable or terminated: the last line in the container's log says which
      2  a wrong argument; the window was finished all the same
      1  its own code failed; it kept the engine serving until G - 5 all the same
    """


def main(args: Sequence[str]) -> None:
    """Run the command line ``args`` and exit with its status."""
    cli.main(args=list(args), prog_name="drainagent")
