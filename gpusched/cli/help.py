"""Options in named groups for --help, as the settings table and the verbs' own options below name them."""

from __future__ import annotations

import click

from gpusched.config.settings import FAILURES, GPUS, JOBS, LIST, OUTPUT, SETTINGS

ITEMS, SHARDS, MERGE = "The items", "The shards", "The merge"
MODELS, ANALYSIS = "The models", "The analysis"

# The options of verbs that are no settings, by the group that lists them.
OWN_OPTIONS = {
    LIST: ("command", "parameters", "each", "force", "follow"),
    FAILURES: ("retry_failed",),
    OUTPUT: ("dry_run", "as_json", "verbose", "quiet", "watch", "--help"),
}
GROUP_OF = {name: group for group, names in OWN_OPTIONS.items() for name in names}
GROUP_OF |= {name: setting.group for name, setting in SETTINGS.items()}
LAST = (GPUS, JOBS, FAILURES, OUTPUT)  # behind the groups of the verb itself
NOTE = "More options, rarely needed: docs/reference.md and 'gpusched config'."


class GroupedCommand(click.Command):
    """A command whose --help lists its options in named groups, those of the verb itself first."""

    own_group = "Options"  # of the options that no table names

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                group = GROUP_OF.get(param.opts[-1]) or GROUP_OF.get(str(param.name)) or self.own_group
                names = record[0].partition(" / ")[0]  # a switch without its --no- form
                groups.setdefault(group, []).append((names, record[1].replace(".  [", " [").rstrip(".")))
        wide = max(len(names) for rows in groups.values() for names, _ in rows)
        formatter.write_paragraph()
        for group in sorted(groups, key=lambda name: LAST.index(name) if name in LAST else -1):
            formatter.write_heading(group)
            with formatter.indentation():
                formatter.write_dl([(names.ljust(wide), text) for names, text in groups[group]])
        if any(getattr(param, "hidden", False) for param in self.params):
            formatter.write_text(NOTE)
