"""Options in named groups for --help, as the settings table and the verbs' own options below name them."""

from __future__ import annotations

import functools
import re

import click

from gpusched.config.settings import FAILURES, GPUS, JOBS, LIST, OUTPUT, SETTINGS

# The options of verbs that are no settings, by the group that lists them.
OWN_OPTIONS = {
    LIST: "command parameters each force follow cluster",
    "The items": "total items strided weights shuffle shard.force",
    "The shards": "num_shards shard_size shards_per_gpu min_items suffix seed_base",
    "The models": "model_list single_model source_model relation revision overwrite redo_old verify",
    "The analysis": "fix_fingers evals_thresh bins peak_window solver device parallel_gpu layers embeddings "
    "min_evals clip_xmax fit_tests delta delta_vectors farms randomize dtype_report",
    GPUS: "devices.claims_dir",
    FAILURES: "retry_failed",
    OUTPUT: "queue output_dir columns plots cache_dir disk_reserve drop_downloads dry_run as_json verbose quiet "
    "watch all_nodes --help",
}
LAST = (GPUS, JOBS, FAILURES, OUTPUT)  # behind the groups of the verb itself
SECOND_NAME = re.compile(r"--[\w-]+, (?=--)")  # of two long names, --help shows the one that other tools have
WIDEST = 30  # names of an option; click puts the help of wider ones on a line of its own
NOTE = "More options, rarely needed: docs/reference.md and 'gpusched config'."


@functools.cache
def group_of() -> dict[str, str]:
    """Return the group of each option that has one, by its name."""
    from gpusched.shards.merge_options import shard_rows

    groups = {name: group for group, names in OWN_OPTIONS.items() for name in names.split()}
    groups |= dict.fromkeys(("patterns", *(f"shard.{row.name}" for row in shard_rows())), "The merge")
    return groups | {name: setting.group for name, setting in SETTINGS.items() if setting.group}


class GroupedCommand(click.Command):
    """A command whose --help lists its options in named groups, those of the verb itself first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None and isinstance(param, click.Option):
                names = SECOND_NAME.sub("", record[0].partition(" / ")[0])  # a switch without its --no- form
                text = (param.help or "").replace(".  [", " [").rstrip(".")
                groups.setdefault(self._group_of(param), []).append((names, text))
        wide = max(len(names) for rows in groups.values() for names, _ in rows if len(names) <= WIDEST)
        formatter.write_paragraph()
        for group in sorted(groups, key=lambda name: LAST.index(name) if name in LAST else -1):
            formatter.write_heading(group)
            with formatter.indentation():
                formatter.write_dl([(names.ljust(wide), text) for names, text in groups[group]])
        if any(getattr(param, "hidden", False) for param in self.params):
            formatter.write_text(NOTE)

    def _group_of(self, option: click.Option) -> str:
        """Return the group of an option: by verb and name, by name, or (--help, which click names) by flag."""
        keys = (f"{self.name}.{option.name}", str(option.name), option.opts[-1])
        return next((group_of()[key] for key in keys if key in group_of()), "Options")
