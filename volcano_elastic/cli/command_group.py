"""A group of commands whose list has whole sentences, and that knows what a mistyped one meant."""

from __future__ import annotations

from difflib import get_close_matches

import click

_WHOLE = 200
"""Characters of a command's first sentence that its group's help shows: all of it."""


class CommandGroup(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(_WHOLE)) for name, one in named if one is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            # Click itself looks among commands that are loaded already, and says so.
            if near and not getattr(error, "possibilities", None):
                said = f"{error.message} Did you mean '{near[0]}'?"
                raise click.UsageError(said, ctx) from None
            raise
