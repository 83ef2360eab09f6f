"""`gpusched devices`: who is on each GPU, if it is free, who has claimed it. Changes nothing."""

from __future__ import annotations

import sys
import time

import click

from gpusched.cli.options import SettingsCommand, print_json, print_page, settings_options
from gpusched.config.layers import LoadedSettings
from gpusched.operations import queues
from gpusched.operations.box import BoxReader, box_document
from gpusched.views.values import DeviceReport


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
@click.option("--watch", is_flag=True, help="Show them again every poll interval, until Ctrl-C.")
def devices(loaded: LoadedSettings, as_json: bool, watch: bool) -> None:
    """Show the GPUs: who is on each, free or not, and why.

    Your own dispatchers count how often a GPU was free in a row. A GPU that none of them counts is read once, and
    "free now" means free at this single check.
    """
    try:
        with BoxReader(loaded.settings) as box:
            if watch:
                _watch(box, loaded.settings.poll_interval, as_json=as_json)
            else:
                _print(box.read(), as_json=as_json)
    except KeyboardInterrupt:
        pass


def _print(reports: list[DeviceReport], *, as_json: bool, indent: int | None = 2) -> None:
    if as_json:
        print_json(box_document(reports), indent=indent)
        return
    from gpusched.views.devices import devices_page

    print_page(devices_page(reports, queues.now()))


def _watch(box: BoxReader, interval_s: float, *, as_json: bool) -> None:
    from gpusched.views.terminal.area import can_be_drawn_over

    if can_be_drawn_over(sys.stdout) and not as_json:
        _draw(box, interval_s)
    while True:
        _print(box.read(), as_json=as_json, indent=None)
        sys.stdout.flush()
        time.sleep(interval_s)


def _draw(box: BoxReader, interval_s: float) -> None:
    """Draw the page over the last one, as often as it is read, for ever."""
    from gpusched.views import tables
    from gpusched.views.devices import devices_page
    from gpusched.views.terminal.area import Area

    area = Area(sys.stdout)
    try:
        while True:
            now = queues.now()
            stamp = time.strftime("%H:%M:%S", time.localtime(now))
            head = tables.line((f"{stamp}, every {interval_s:g} s, Ctrl-C ends", tables.DIM))
            lines = tables.fit_height([head, *devices_page(box.read(), now)], area.size[1] - 1)
            area.draw(lines)
            time.sleep(interval_s)
    finally:
        area.close(keep=True)
