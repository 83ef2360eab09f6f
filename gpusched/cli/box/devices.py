"""`gpusched devices`: who is on each GPU, if it is free, who has claimed it. Changes nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import click

from gpusched.cli.options import SettingsCommand, print_json, print_page, settings_options, warn_of_claims
from gpusched.config.layers import LoadedSettings
from gpusched.operations import queues
from gpusched.operations.box.devices import open_devices
from gpusched.operations.box.report import box_document, read_box
from gpusched.views.values import BoxReport


@click.command(
    cls=SettingsCommand,
    epilog="\b\nExamples:\n  gpusched devices\n  gpusched devices --watch\n  gpusched devices --simulate 4 --json",
)
@settings_options(
    "simulate",
    "claims_dir",
    "gpu_mem_threshold",
    "free_when",
    "allow_unreadable_memory",
    "poll_interval",
    show_rare=True,
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one document a line.")
@click.option("--all-nodes", metavar="CLUSTER", help="Show the GPUs of all nodes of a cluster.")
@click.option("--watch", is_flag=True, help="Show them again every poll interval, until Ctrl-C.")
def devices(loaded: LoadedSettings, as_json: bool, all_nodes: str | None, watch: bool) -> None:
    """Show the GPUs: who is on each, free or not, and why.

    Below them stands who waits for some. Your own dispatchers count how often a GPU was free in a row. A GPU that none
    of them counts is read once, and "free now" means free at this single check.
    """
    if all_nodes is not None:
        return _print_nodes(all_nodes, loaded, as_json=as_json)
    warn_of_claims(loaded.settings)
    try:
        with open_devices(loaded.settings, 1) as opened:
            read = partial(read_box, opened, loaded.settings)
            if watch:
                _watch(read, loaded.settings.poll_interval, as_json=as_json)
            else:
                _print(read(), as_json=as_json)
    except KeyboardInterrupt:
        pass


def _watch(read: Callable[[], BoxReport], interval_s: float, *, as_json: bool) -> None:
    while True:
        click.clear()  # a terminal only
        if sys.stdout.isatty() and not as_json:
            click.echo(f"{time.strftime('%H:%M:%S')}, every {interval_s:g} s, Ctrl-C ends")
        _print(read(), as_json=as_json, indent=None)
        sys.stdout.flush()
        time.sleep(interval_s)


def _print(box: BoxReport, *, as_json: bool, indent: int | None = 2) -> None:
    if as_json:
        print_json(box_document(box), indent=indent)
    else:
        from gpusched.views.devices import devices_page

        print_page(devices_page(box, queues.now()))


def _print_nodes(cluster: str, loaded: LoadedSettings, *, as_json: bool) -> None:
    from gpusched.operations.look.nodes import node_devices
    from gpusched.views.features.cluster import devices_page

    nodes = node_devices(queues.find_queue(cluster, state_dir=loaded.settings.state_dir))
    if as_json:
        print_json({"nodes": nodes})
    else:
        print_page(devices_page(nodes))
