"""The open attempts of a dispatcher: descriptors that must not be kept."""

from __future__ import annotations

import errno
import os
import selectors
from pathlib import Path

import pytest

from gpusched.dispatcher.attempts.attempt_book import AttemptBook
from gpusched.host import locks
from gpusched.host.attempts.launcher import ShepherdNotice
from gpusched.host.queue.queue_dirs import QueueDir


def test_claims_that_come_after_the_end_of_their_attempt_are_let_go(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector:
        book = AttemptBook(QueueDir(str(tmp_path), str(tmp_path)), "q", selector)
        path = str(tmp_path / "GPU-1.lock")
        claim = locks.take_file(path)
        assert claim is not None
        book.launcher._on_notice(ShepherdNotice(f"{tmp_path}/attempts/1.1", claims=(claim,)))
        assert not locks.is_held(path)


def test_a_life_file_that_could_not_be_emptied_is_not_kept_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with selectors.DefaultSelector() as selector:
        book = AttemptBook(QueueDir(str(tmp_path), str(tmp_path)), "q", selector)
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", refuse)
            with pytest.raises(OSError, match="No space"):
                book.prepare(1, 1)
        life = book.prepare(1, 1)
        assert life is not None
        os.close(life)
