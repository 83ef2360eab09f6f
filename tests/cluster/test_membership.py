"""What HOSTS.yaml may say, how a box is told to join, and which boxes cannot."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from gpusched.cluster import boxes, membership
from gpusched.cluster.boxes import HEAD, BoxConfig
from gpusched.cluster.leases import LeaseTerms
from gpusched.common.errors import GpuschedError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def hosts(text: str, tmp_path: Path) -> tuple[str, object, list[membership.HostWish]]:
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    return membership.read_hosts(membership.read_yaml(str(path)), "lab")


def test_hosts_are_read_with_their_settings(tmp_path: Path) -> None:
    text = (
        "hosts: [gpu1, {host: bo@gpu2.lab, gpu-list: 0-3, max-gpus: 2, tags: [big], hours: '20:00-08:00'}]\nlease: 20m"
    )
    name, own, (first, second) = hosts(text, tmp_path)
    assert (name, own) == ("lab", {"lease": "20m"})
    assert first == membership.HostWish("gpu1", "gpu1")
    options = ("--hours=20:00-08:00", "--tag=big", "--set=gpu_list=0-3", "--set=max_gpus=2")
    assert second == membership.HostWish("bo@gpu2.lab", "gpu2", options=options)
    assert hosts("hosts: [{host: a, tags: big}]", tmp_path)[2][0].options == ("--tag=big",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "holds no list `hosts:`"),
        ("hosts: [{python: x}]", "a box has no host"),
        ("hosts: [{host: a, gpus: 2}]", "'gpus' is no setting of a node"),
        ("hosts: [{host: a, max-gpus: x}]", "'x' cannot be right: a whole number, at least 1"),
        ("hosts: [a]\nports: 3", "unknown key 'ports'"),
        ("hosts: [head]", "'head' is no name"),
        ("hosts: {", "cannot be read"),
    ],
)
def test_hosts_that_cannot_be_right_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(GpuschedError, match=problem):
        hosts(text, tmp_path)


def test_a_box_joins_by_ssh_with_the_token_on_its_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho "$@"; cat\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    boxes.make_token("lab", "secret")
    head = BoxConfig("lab", HEAD, "10.0.0.1:7700", "10.0.0.1", terms=LeaseTerms(60, 5, 5))
    wish = membership.HostWish("bo@gpu2", "gpu2", "/opt/my python", ("--tag=big", "--set=setup=a b"))
    out = membership.join_by_ssh(head, wish).communicate()[0].decode()
    assert out == (
        "-oBatchMode=yes -oConnectTimeout=15 -oServerAliveInterval=15 -- bo@gpu2 "
        "'/opt/my python' -m gpusched cluster join 10.0.0.1:7700 --name lab --node gpu2 "
        "--token-file - --tag=big '--set=setup=a b' --lease 60 --grace 5 --margin 5\nsecret"
    )


@pytest.mark.parametrize(
    ("script", "is_in", "said"),
    [
        ("echo welcome; echo 'gpusched: gpu2 has joined lab' >&2", True, ["welcome", "gpu2 has joined lab"]),
        (
            r"printf '@@@@\r\nHost key verification failed.\r\n' >&2; exit 255",
            False,
            ["Host key verification failed.", "`ssh gpu2 true` must work without a question"],
        ),
        (
            "echo 'bash: line 1: /opt/python: No such file or directory' >&2; exit 127",
            False,
            [
                "bash: line 1: /opt/python: No such file or directory",
                "`python:` in HOSTS.yaml names the interpreter there that has gpusched",
            ],
        ),
        ("echo 'gpusched: error: no\n  do' >&2; exit 3", False, ["error: no", "do"]),
    ],
)
def test_what_ssh_says_is_told_in_a_few_lines(script: str, is_in: bool, said: list[str]) -> None:
    joining = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert membership.answer_of(joining, membership.HostWish("gpu2", "gpu2")) == (is_in, said)


def test_a_token_is_made_for_this_user_alone_and_refused_otherwise() -> None:
    with pytest.raises(GpuschedError, match="there is no token"):
        boxes.check_token("lab")
    boxes.make_token("lab")
    boxes.check_token("lab")
    assert os.stat(boxes.token_path("lab")).st_mode & 0o777 == 0o600
    assert boxes.only_cluster() == "lab"
    os.chmod(boxes.token_path("lab"), 0o640)
    with pytest.raises(GpuschedError, match="others may read it"):
        boxes.check_token("lab")
    boxes.make_token("other")
    with pytest.raises(GpuschedError, match="tokens of 2 clusters"):
        boxes.only_cluster()


def test_terms_are_parsed_and_too_short_ones_refused() -> None:
    assert membership.terms_of({"lease": "20m", "grace": 5}) == LeaseTerms(1200, 5, 10)
    with pytest.raises(GpuschedError, match="too short"):
        membership.terms_of({"lease": "1m", "grace": "15"})
    with pytest.raises(GpuschedError, match="'x' is no time"):
        membership.terms_of({"lease": "x"})


def test_another_version_of_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "refuse_missing", lambda *_, **__: None)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.50.1")
    with pytest.raises(GpuschedError, match=r"Ray 2.50.1 is installed here, and 2.60 or 2.61 is needed"):
        membership.check_ray()


def test_another_python_than_that_of_the_head_is_named_with_the_remedy() -> None:
    box = BoxConfig("lab", "a", "10.0.0.1:7700", "10.0.0.2")
    boxes.write(box)
    Path(box.path("ray.log")).write_text(
        "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.61.0\n    Python: 3.12.4\n"
        "This process on node 10.0.0.2 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n\n"
    )
    assert membership._hopeless(box) == (
        "it has Ray 2.60.0 and Python 3.11, and the head Ray 2.61.0 and Python 3.12",
        "on a, take a Python 3.12 and install ray==2.61.0 and the same gpusched there",
    )


@pytest.mark.parametrize(("at", "is_open"), [("19:59", False), ("20:00", True), ("23:59", True), ("08:00", False)])
def test_hours_go_past_midnight(at: str, is_open: bool) -> None:
    from datetime import datetime

    moment = datetime.strptime(f"2026-03-04 {at}", "%Y-%m-%d %H:%M").timestamp()
    assert boxes.is_within("20:00-08:00", moment) is is_open
    assert boxes.is_within("", moment)


def test_a_box_is_stored_and_found_again() -> None:
    box = BoxConfig("lab", "a", "10.0.0.1:7700", "10.0.0.2", 7800, LeaseTerms(60, 5, 5), {"max_gpus": 2}, ("big",), "")
    boxes.write(box)
    assert boxes.read("lab", "a") == box
    assert boxes.all_here() == [box]
    assert boxes.read("lab", "b") is None
    assert membership.find(None, head=False) == [box]
    with pytest.raises(GpuschedError, match="this box is not the head of a cluster"):
        membership.find(None, head=True)


def test_a_node_beside_its_head_has_ports_of_its_own_and_keeps_them() -> None:
    assert boxes.first_port("lab", "a") == boxes.PORT
    boxes.write(BoxConfig("lab", HEAD, "10.0.0.1:7900", "10.0.0.1", 7900))
    assert boxes.first_port("lab", "a") == 7940
    boxes.write(BoxConfig("lab", "a", "10.0.0.1:7900", "10.0.0.1", 7940))
    assert (boxes.first_port("lab", "a"), boxes.first_port("lab", "b")) == (7940, 7980)


def test_a_port_that_another_program_has_is_named_before_anything_starts() -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(GpuschedError, match=f"port {port} cannot be had here: Address already in use"):
            membership.start_head("lab", LeaseTerms(), ip="127.0.0.1", port=port)
        box = BoxConfig("lab", "a", "127.0.0.1:1", "127.0.0.1", port - 3)
        with pytest.raises(GpuschedError, match=f"port {port} "):
            box.refuse_busy_ports()
    assert boxes.all_here() == []
