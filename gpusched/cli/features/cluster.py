"""`gpusched cluster`: one queue over several boxes."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from gpusched.cli.options import json_option, print_json, print_page, say
from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_OK

at_once_option = click.option("--now", "at_once", is_flag=True, help="Stop what runs; it is queued again.")
name_argument = click.argument("name", required=False, metavar="[CLUSTER]")


@click.group(epilog="\b\nExamples:\n  gpusched cluster up lab.yaml\n  gpusched run commands.txt --cluster lab")
def cluster() -> None:
    """Have one queue over several boxes.

    They are used as this user, without root. They talk by Ray, which the extra `cluster` brings. Jobs
    go to the queue of the cluster's name, from the box of its head: `gpusched submit -q NAME`, `gpusched run FILE
    --cluster NAME`.
    """


@cluster.command(epilog="\b\nExample of HOSTS.yaml:\n  hosts: [gpu1, {host: gpu2, gpu-list: 0-3, tags: [big]}]")
@click.argument("hosts", metavar="HOSTS.yaml", type=click.Path(exists=True, dir_okay=False))
def up(hosts: str) -> int:
    """Start the head of a cluster here, and its nodes by ssh.

    What is at work already stays as it is.
    """
    from gpusched.cluster import membership

    data = membership.read_yaml(hosts)
    name, own, wishes = membership.read_hosts(data, os.path.splitext(os.path.basename(hosts))[0])
    terms = membership.terms_of(own)
    head = membership.start_head(name, terms, ip=str(own.get("ip", "")), port=int(own.get("port", 7700)))
    say(f"the head of {name} is at work: {head.address}")
    started = [(wish, membership.join_by_ssh(head, wish)) for wish in wishes]
    failed = 0
    for wish, joining in started:
        is_in, lines = membership.answer_of(joining, wish)
        failed += not is_in
        for line in lines:
            say(f"{wish.node}: {line}")
    return EXIT_CANNOT_WORK if failed else EXIT_OK


@cluster.command()
@click.argument("head", metavar="HOST[:PORT]")
@click.option("--name", metavar="CLUSTER", help="Name the cluster.  [default: that of the only token here]")
@click.option("--node", metavar="NAME", help="Name this box in the cluster.  [default: its host name]")
@click.option("--ip", metavar="ADDRESS", default="", help="Be reached by this address.")
@click.option("--port", type=int, help="Use the 40 ports from this one on.  [default: 7700, beside a head 7740]")
@click.option("--token-file", metavar="FILE", help="Take the token of the cluster from here; - reads standard input.")
@click.option("--tag", "tags", multiple=True, help="Give the node this tag (node-tag= of a job).")
@click.option("--hours", default="", metavar="FROM-TO", help="Take jobs only at these hours, as 20:00-08:00.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set gpu-list, max-gpus, setup ... here.")
@click.option("--lease", metavar="TIME", default="15m", show_default=True, help="As the head has it.")
@click.option("--grace", metavar="TIME", default="10", show_default=True, help="As the head has it.")
@click.option("--margin", metavar="TIME", default="10", hidden=True)
def join(head: str, name: str | None, node: str | None, token_file: str | None, **more: Any) -> None:
    """Make this box a node of the cluster whose head is there."""
    from gpusched.cluster import boxes, membership

    name = name or boxes.only_cluster()
    host, _, port = head.partition(":")
    if token_file is not None:
        with click.open_file(token_file, "r") as file:
            boxes.make_token(name, file.read().strip())
    pairs = dict(text.partition("=")[::2] for text in more["settings"])
    node = boxes.check_name(node or os.uname().nodename.split(".")[0], "--node")
    box = boxes.BoxConfig(
        boxes.check_name(name, "--name"),
        node,
        address=f"{host}:{port or boxes.PORT}",
        ip=more["ip"] or membership.own_ip(host),
        port=more["port"] or boxes.first_port(name, node),
        terms=membership.terms_of(more),
        settings=membership.node_settings(pairs),
        tags=more["tags"],
        hours=boxes.check_hours(more["hours"]),
    )
    is_new = membership.join(box)
    say(f"{box.node} has joined {name}" if is_new else f"{box.node} is in {name} already")


@cluster.command()
@name_argument
@click.option("--node", metavar="NAME", help="Name the node, if this box is several.")
@click.option("--drain", is_flag=True, help="Leave when what runs here has ended; this is the default.")
@at_once_option
def leave(name: str | None, node: str | None, drain: bool, at_once: bool) -> None:
    """Have this box leave its cluster."""
    from gpusched.cluster import membership

    found = [box for box in membership.find(name, head=False) if node in (None, box.node)]
    for box in found:
        membership.leave(box, at_once=at_once)
        say(f"{box.node} leaves {box.cluster} {'now' if at_once else 'when what runs has ended'}")
    for box in found:
        membership.wait_until_left(box)


@cluster.command()
@name_argument
@at_once_option
def down(name: str | None, at_once: bool) -> None:
    """End a cluster, from the box of its head. What waits stays in its queue."""
    from gpusched.cluster import membership

    for box in membership.find(name, head=True):
        membership.leave(box, at_once=at_once)
        say(f"{box.cluster} ends {'now' if at_once else 'when what runs has ended'}")
        membership.wait_until_left(box)


@cluster.command()
@name_argument
@json_option()
def status(name: str | None, as_json: bool) -> int:
    """Show the nodes of a cluster, from the box of its head."""
    from dataclasses import asdict

    from gpusched.cluster import membership
    from gpusched.views.features.cluster import cluster_page

    heads = membership.find(name, head=True)
    views = {box.cluster: membership.view(box) for box in heads}
    if as_json:
        print_json({"clusters": {name: view and asdict(view) for name, view in views.items()}})
    else:
        for box in heads:
            print_page(cluster_page(box.cluster, box.address, views[box.cluster], time.time()))
    return EXIT_OK if all(views.values()) else EXIT_CANNOT_WORK
