"""The address of the page: kept for its user alone, and only as long as the port was not somebody else's."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpusched.common.errors import GpuschedError
from gpusched.web.address import PageAddress, open_address


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "gpusched" / "web"


def url_of(shown: str = "", port: int | None = None) -> str:
    address = open_address(shown, port)
    with address.listener:
        return address.url


def test_it_stays_for_the_same_queues(state: Path) -> None:
    first = url_of("/runs/a")
    assert url_of("/runs/a") == first != url_of("/runs/b")
    (path, _) = sorted(state.iterdir())
    assert {each.stat().st_mode & 0o777 for each in (path, state)} == {0o600, 0o700}


def test_a_token_goes_with_its_port(state: Path) -> None:
    first = open_address("")
    with first.listener:
        port, other = first.port, url_of("")
    assert f":{port}/" not in other and first.token not in other
    again = url_of("", port)
    assert first.token not in again and f":{port}/" in again and url_of("") == again


@pytest.mark.parametrize("damage", ["mode", "text", "link", "empty"])
def test_a_file_that_others_saw_or_made_is_worth_nothing(state: Path, damage: str) -> None:
    first = url_of("")
    (path,) = state.iterdir()
    if damage == "mode":
        path.chmod(0o644)
    elif damage == "link":
        path.rename(state / "other")
        path.symlink_to("other")
    else:
        path.write_text("" if damage == "empty" else "80 short\n")
    second = url_of("")
    assert second.split("/")[3] != first.split("/")[3] and path.stat().st_mode & 0o777 == 0o600


def test_a_port_that_cannot_be_had(state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(GpuschedError, match=f"port {port} cannot be had"):
            open_address("", port)
    assert not state.exists()


@pytest.mark.parametrize("home", ["", "/proc/nowhere"])
def test_without_a_home_it_is_another_one_each_time(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", home or "relative")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    first = url_of()
    assert first.startswith("http://127.0.0.1:") and url_of() != first


def test_the_tunnel_leads_to_the_same_address(state: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = PageAddress(listener, "word")
        assert address.tunnel.startswith(f"ssh -N -L {address.port}:127.0.0.1:{address.port} ")
