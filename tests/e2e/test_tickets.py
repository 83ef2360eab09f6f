"""Turns among users of one box, each with a uid of its own: who comes next, what strangers can do, what kills leave."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpusched.common import simulation
from gpusched.host.store import Store
from tests.support.box import UNTIL_GO, Box, Running, wait_for
from tests.support.other_user import NEEDS_TWO_USERS, interpreter_for_all, other_user, shared_directory

pytestmark = [NEEDS_TWO_USERS, pytest.mark.slow]

STRANGER = 64009


class Place(Box):
    """What a user has of a box. Its queues are read as that user, whose files SQLite may have to make."""

    uid = 0

    @contextlib.contextmanager
    def store(self, name: str = "list", **options: bool) -> Iterator[Store]:
        os.seteuid(self.uid)
        try:
            with super().store(name, **options) as store:
                yield store
        finally:
            os.seteuid(0)


@dataclass
class User:
    """A user with a home and a working directory, on the box of all."""

    uid: int
    box: Place
    program: Sequence[str]

    def start(self, *words: str, **environment: str | None) -> Running:
        return self.box.spawn(*words, program=self.program, user=self.uid, environment=environment)

    def run(self, *lines: str, options: str = "", name: str = "list.txt", **environment: str | None) -> Running:
        self.box.write(*lines, name=name)
        return self.start("run", name, *options.split(), **environment)

    def spans(self, name: str = "list") -> list[tuple[float, float, int]]:
        """When each attempt began and ended, and on how many GPUs."""
        rows = [row.last for row in self.box.jobs(name) if row.attempts]
        return sorted((row.started_at, row.ended_at or time.time(), len(row.devices)) for row in rows)


class Users:
    """One box with simulated GPUs, and some of its users."""

    def __init__(self, root: Path, gpus: str, count: int) -> None:
        found = interpreter_for_all()
        if found is None:
            pytest.skip("no Python here that other users can start with our packages")
        python, path = found
        self.claims = root / "claims"
        shared = root / "simulation"
        simulation.create(str(shared), simulation.parse_spec(gpus))
        self.all = []
        for uid in range(64001, 64001 + count):
            environment = {
                "PYTHONPATH": path,
                "GPUSCHED_CLAIMS_DIR": str(self.claims),
                simulation.ENV_DIRECTORY: str(shared),
                "GPUSCHED_POLL_INTERVAL": "0.1",
            }
            box = Place(root / str(uid), gpus="", environment=environment)
            box.uid = uid
            _give(box.root, uid)
            self.all.append(User(uid, box, [python, "-m", "gpusched"]))
        for directory, _, files in os.walk(shared):
            for name in (".", *files):
                os.chmod(os.path.join(directory, name), 0o777)

    def tickets(self) -> list[Path]:
        return sorted(self.claims.glob("ticket-*.lock"))


def _give(root: Path, uid: int) -> None:
    for directory, _, files in os.walk(root):
        for name in (".", *files):
            os.chown(os.path.join(directory, name), uid, uid)


@pytest.fixture
def users(request: pytest.FixtureRequest) -> Iterator[Users]:
    """Users of one box; the parameter says its GPUs and their number."""
    gpus, count = getattr(request, "param", ("1", 2))
    with shared_directory() as root:
        made = Users(root, gpus, count)
        try:
            yield made
        finally:
            for user in made.all:
                user.box.__exit__(None, None, None)
                for said in sorted(user.box.root.glob("said.*")):
                    print(f"user {user.uid}, {said.name}:", said.read_text("utf-8", "replace")[-2000:])


def test_the_single_job_of_a_newcomer_starts_after_the_next_end(users: Users) -> None:
    ada, bo = users.all
    many = ada.run(*[f"sleep 0.6 #{n}" for n in range(24)])
    wait_for(lambda: len(ada.spans()) == 2)
    one = bo.run("sleep 0.2", GPUSCHED_MAX_CHECKS="3")
    wait_for(lambda: len(users.tickets()) == 2 or bo.spans())
    seen = len(ada.spans())
    assert one.wait().code == 0, one.said()
    ((started_at, ended_at, _),) = bo.spans()
    before = [span for span in ada.spans() if span[0] < started_at]
    after = [span for span in ada.spans() if span[0] > started_at]
    assert len(before) <= seen + 1, before  # one may have had its GPU already
    assert before[-1][1] <= started_at
    assert not after or after[0][0] >= ended_at
    many.signal(signal.SIGTERM)
    many.wait()
    wait_for(lambda: not users.tickets())


@pytest.mark.parametrize("users", [("8", 3)], indirect=True)
@pytest.mark.parametrize(
    ("jobs", "pause"), [(20, 1.0), pytest.param(60, 3.0, marks=pytest.mark.soak)], ids=["short", "full"]
)
def test_three_users_get_the_same_time_while_all_wait(users: Users, jobs: int, pause: float) -> None:
    options = {"GPUSCHED_POLL_INTERVAL": "0.2"}
    running = [user.run(*[f"sleep {pause} #{n}" for n in range(jobs)], **options) for user in users.all]
    for each in running:
        assert each.wait(600).code == 0, each.said()
    begin, end = max(user.spans()[0][0] for user in users.all), min(user.spans()[-1][0] for user in users.all)
    used = [sum(max(0.0, min(b, end) - max(a, begin)) for a, b, _ in user.spans()) for user in users.all]
    print(f"GPU-seconds {used} in {end - begin:.1f} s")
    if jobs == 60:
        assert max(used) <= 1.1 * min(used), used
    assert min(used) >= sum(used) / 6, used  # half a fair share, of few jobs and on a busy processor
    meet([span for user in users.all for span in user.spans()], 8)


def meet(spans: Sequence[tuple[float, float, int]], gpus: int) -> None:
    """Check that never more jobs run than there are GPUs."""
    changes = sorted([(a, n) for a, _, n in spans] + [(b, -n) for _, b, n in spans])
    assert max(itertools.accumulate(n for _, n in changes)) <= gpus


@pytest.mark.parametrize("users", [("4", 2)], indirect=True)
def test_four_gpus_are_gathered_among_single_jobs(users: Users) -> None:
    ada, bo = users.all
    many = ada.run(*[f"sleep 0.{5 + n % 4} #{n}" for n in range(200)])
    wait_for(lambda: len(ada.spans()) >= 4)
    began = time.time()
    four = bo.run("[gpus=4] sleep 0.5", "[gpus=4] sleep 0.5 #2")
    assert four.wait().code == 0, four.said()
    first, second = bo.spans()
    assert first[0] <= began + 15 and second[0] <= first[1] + 15
    meet([*ada.spans(), *bo.spans()], 4)
    assert [span for span in ada.spans() if first[1] < span[0] < second[0]], "bo gave nothing back"
    many.signal(signal.SIGTERM)
    many.wait()


def test_an_interactive_user_waits_and_yields_like_a_dispatcher(users: Users) -> None:
    ada, bo = users.all
    many = ada.run("sleep 3", *[f"sleep 0.5 #{n}" for n in range(40)])
    wait_for(ada.spans)
    waiting = bo.start("exec", "sh", "-c", "echo on $CUDA_VISIBLE_DEVICES; sleep 1")
    wait_for(lambda: any("interactive" in text for text in labels(users)))
    shown = json.loads(ada.start("devices", "--json").wait().out)
    assert str(bo.uid) in [ticket["user"] for ticket in shown["tickets"]], shown["tickets"]
    waiting.wait_until_said("on 0")
    explained = ada.start("explain", "40", "-q", "list")
    assert f"GPU 0: claimed by {bo.uid}'s gpusched for an interactive session" in explained.wait().out.replace(
        "\n      ", " "
    )
    assert waiting.wait().code == 0
    began = len(ada.spans())
    wait_for(lambda: len(ada.spans()) > began)
    killed = bo.start("exec", "sleep", "9")
    wait_for(lambda: len(users.tickets()) == 2)
    killed.signal(signal.SIGKILL)
    killed.wait()
    ran = len(ada.spans())
    wait_for(lambda: len(ada.spans()) > ran + 2)
    assert bo.start("devices").wait().code == 0
    assert len(users.tickets()) == 1, "his own next command removes what a killed one has left"
    many.signal(signal.SIGTERM)
    many.wait()


def labels(users: Users) -> list[str]:
    texts = []
    for path in users.claims.glob("ticket-*.by-*"):
        with suppress(FileNotFoundError):  # withdrawn just now
            texts.append(path.read_text())
    return texts


def waiting_jobs(users: Users) -> list[int]:
    return [json.loads(text)["job"] for text in labels(users) if text]  # empty: it is just being written


def test_whoever_prefers_one_of_his_jobs_keeps_his_place(users: Users) -> None:
    """Until a job of his starts: then the next one waits from there on."""
    ada, bo = users.all
    first = ada.run(UNTIL_GO)
    wait_for(ada.spans)
    waiting = bo.run("sleep 1 # 1", "sleep 2 # 2", "true # 3")
    wait_for(lambda: len(users.tickets()) == 1 and waiting_jobs(users) == [1])
    mine = users.tickets()
    assert bo.start("prio", "2", "1", "-q", "list").wait().code == 0
    wait_for(lambda: waiting_jobs(users) == [2])
    assert users.tickets() == mine
    (ada.box.work / "go").touch()
    first.wait()
    wait_for(lambda: bo.spans() and users.tickets() not in ([], mine) and waiting_jobs(users) == [1])
    assert waiting.wait().code == 0


def test_several_queues_of_a_user_are_one_user(users: Users) -> None:
    """Two of ada's queues get every other turn together, and not two of three."""
    ada, bo = users.all
    running = [ada.run(*[f"sleep 0.4 #{n}" for n in range(20)], name=f"{name}.txt") for name in ("one", "two")]
    wait_for(lambda: ada.spans("one") or ada.spans("two"))
    running.append(bo.run(*[f"sleep 0.4 #{n}" for n in range(8)]))
    assert running[-1].wait().code == 0
    began, ended = bo.spans()[1][0], bo.spans()[-1][1]
    hers = [span for name in ("one", "two") for span in ada.spans(name) if began < span[0] < ended]
    assert 4 <= len(hers) <= 11, len(hers)  # 6 or 7 on a box at rest
    for each in running[:2]:
        each.signal(signal.SIGTERM)
        each.wait()


@pytest.mark.parametrize("users", [("4", 1)], indirect=True)
def test_limit_of_a_user_counts_all_queues_and_interactive_ones(users: Users) -> None:
    (ada,) = users.all
    limit = {"GPUSCHED_MAX_GPUS_PER_USER": "2"}
    held = ada.start("exec", "sleep", "6", **limit)
    wait_for(lambda: ada.box.claimed())
    running = [ada.run(*[f"sleep 0.3 #{n}" for n in range(6)], name=f"{name}.txt", **limit) for name in ("one", "two")]
    most = 0
    while any(each.process.poll() is None for each in running):
        most = max(
            most,
            len(ada.spans("one")) and sum(row.state == "running" for q in ("one", "two") for row in ada.box.jobs(q)),
        )
        time.sleep(0.02)
    assert [each.wait().code for each in running] == [0, 0]
    assert most == 1
    held.signal(signal.SIGTERM)
    held.wait()


# ---- strangers -------------------------------------------------------------------------------------

FORGED = """
claims, uuid = sys.argv[1:]
want = {"job": 1, "gpus": 1, "devices": [uuid]}
text = json.dumps({**want, "check_s": 1e308, "queue": "x", "turn_at": -1e300, "yields": {}})
def forge(name, data, held=True):
    path = f"{claims}/ticket-{name}.lock"
    kept.append(lock(path) if held else open(path, "w"))
    with open(f"{path}.by-{os.getuid()}", "w") as file:
        file.write(data)
    os.utime(path, (1, 1))
kept = []
"""
ATTACKS = {
    "valid": "forge('a', text)",
    "garbage": "[forge(n, s) for n, s in enumerate(['{', '[' * 30000, 'x' * 10**7, '{\"gpus\": 1e999}', '9' * 9999])]",
    "wants": "forge('a', text.replace('\"gpus\": 1', '\"gpus\": 10000000000000000000000'))",
    "thousands": "[forge(n, text, n % 50 == 0) for n in range(4000)]",
    "link": "os.symlink('/etc/shadow', claims + '/ticket-a.lock'); os.symlink('/dev/zero', claims + '/ticket-b.lock')",
    "pipe": "os.mkfifo(claims + '/ticket-a.lock'); kept.append(lock(claims + '/ticket-b.lock')); "
    "os.mkfifo(f'{claims}/ticket-b.lock.by-{os.getuid()}')",
    "folder": "os.mkdir(claims + '/ticket-a.lock')",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_tickets_of_a_stranger_delay_by_no_more_than_the_limit(users: Users, attack: str) -> None:
    ada, _ = users.all
    assert ada.run("true", name="first.txt").wait().code == 0
    uuid = next(path.stem for path in users.claims.glob("*.lock"))
    with other_user(FORGED + ATTACKS[attack], users.claims, uuid, uid=STRANGER):
        is_believed = attack in ("valid", "thousands")
        ada.box.write("sleep 0.1", name="other.txt")
        planned = ada.start("run", "other.txt", "--dry-run").wait()
        assert (f"GPU 0 is left to {STRANGER}" in planned.text) == is_believed, planned.text
        began = time.time()
        running = ada.run("sleep 0.1", "sleep 0.1 #2", "sleep 0.1 #3", options="--max-yield 4s")
        ended = running.wait()
        assert ended.code == 0 and "Traceback" not in ended.text, ended.text
        assert time.time() - began <= 25
        assert (f"GPU 0 is left to {STRANGER}" in ended.text) == is_believed, ended.text
        if is_believed:
            assert max(b[0] - a[1] for a, b in itertools.pairwise(ada.spans())) <= 3, "it cost more than once"
        assert ada.start("devices").wait().code == 0


# ---- kills -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["waits", "yields", "gathers"])
@pytest.mark.parametrize("users", [("2", 2)], indirect=True)
def test_a_dispatcher_that_is_killed_leaves_no_ticket_that_counts(users: Users, when: str) -> None:
    ada, bo = users.all
    many = ada.run(*[f"sleep 0.{3 + n % 3} #{n}" for n in range(60)])
    wait_for(lambda: len(ada.spans()) > 2)
    theirs = bo.run("[gpus=2] echo ran >> ran" if when == "gathers" else "echo ran >> ran", GPUSCHED_MAX_CHECKS="4")
    victim = many if when == "yields" else theirs
    word = {"waits": f'"queue": "{bo.box.queue()}"', "yields": f'": "{bo.uid}"', "gathers": '"gpus": 2'}[when]
    wait_for(lambda: any(word in text for text in labels(users)))
    victim.signal(signal.SIGKILL)
    victim.wait()
    if victim is many:
        assert theirs.wait().code == 0
        assert ada.start("run", "list.txt").wait(120).code == 0
    else:
        ran = len(ada.spans())
        wait_for(lambda: len(ada.spans()) > ran + 6)
        assert bo.start("run", "list.txt").wait().code == 0
    assert bo.box.read("ran") == "ran\n"
    many.signal(signal.SIGTERM)
    many.wait()
    wait_for(lambda: not users.tickets() and not ada.box.claimed())
