"""``drainagent completion``: what a shell evaluates to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell: eval "$(drainagent completion bash)".

    \b
    Exit status: 0; 2 for wrong usage.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the choice allows only shells that click knows
    click.echo(kind(ctx.find_root().command, {}, "drainagent", "_DRAINAGENT_COMPLETE").source())
