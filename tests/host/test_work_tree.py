"""Git work trees: which commit and whether changed, copies of them, and jobs that run in a copy."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpusched.common.errors import GpuschedError
from gpusched.host.code import job_dirs, tree_copy, work_tree
from gpusched.host.code.job_dirs import JobDirs
from gpusched.host.code.tree_copy import snapshot
from gpusched.host.code.work_tree import WorkTree, describe
from tests.support.box import Box, wait_for

pytestmark = [
    pytest.mark.slow,  # git is started again and again
    pytest.mark.skipif(shutil.which("git") is None, reason="there is no git"),
]
IDENTITY = {f"GIT_{who}_{what}": "ann@box" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(where: Path | str, *words: str, **environment: str) -> str:
    quiet = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    command = ["git", "-C", str(where), "-c", "protocol.file.allow=always", *words]
    done = subprocess.run(
        command, env={**os.environ, **IDENTITY, **quiet, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(where: Path, text: str = "work") -> str:
    git(where, "add", "-A")
    git(where, "commit", "-q", "--allow-empty", "-m", text)
    return git(where, "rev-parse", "HEAD")


def write(path: Path, text: str = "", mode: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if mode is not None:
        path.chmod(mode)
    return path


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A clean work tree: train.py, lib/net.py, run.sh, and what git ignores."""
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    write(repo / "train.py", "print(1)\n")
    write(repo / "lib" / "net.py", "LAYERS = 3\n")
    write(repo / "run.sh", "exit 0\n", 0o755)
    write(repo / ".gitignore", "data/\n*.log\n")
    commit(repo)
    write(repo / "data" / "big.bin", "0" * 1000)
    write(repo / "old.log")
    return repo


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "queue" / "snapshots")


def tree_of(where: Path) -> WorkTree:
    found = describe(str(where))
    assert found is not None
    return found


def copy_of(where: Path, target: str) -> Path:
    return Path(snapshot(tree_of(where).root, target)[0])


def files_in(directory: Path) -> dict[str, str]:
    """Its files with their content; links with where they lead to."""
    return {
        str(path.relative_to(directory)): f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text()
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


# ---- commit and changes ----------------------------------------------------------------------------


def test_a_clean_work_tree(repo: Path) -> None:
    head = git(repo, "rev-parse", "HEAD")
    assert describe(str(repo)) == describe(str(repo / "lib")) == WorkTree(str(repo), head, False)
    assert tree_of(repo / "data").label == head  # a directory that git ignores lies in the work tree too


@pytest.mark.parametrize("change", ["edited", "staged", "deleted", "new", "new in a new directory", "mode", "link"])
def test_what_makes_a_tree_dirty(repo: Path, change: str) -> None:
    if change in ("edited", "staged"):
        write(repo / "train.py", "print(2)\n")
    if change == "staged":
        git(repo, "add", "train.py")
    elif change == "deleted":
        (repo / "train.py").unlink()
    elif change == "new":
        write(repo / "new.py")
    elif change == "new in a new directory":
        write(repo / "a" / "b" / "new.py")
    elif change == "mode":
        (repo / "train.py").chmod(0o755)
    elif change == "link":
        (repo / "link").symlink_to("train.py")
    assert tree_of(repo).label == git(repo, "rev-parse", "HEAD") + "+dirty"


def test_what_is_left_out_makes_no_tree_dirty(repo: Path) -> None:
    write(repo / "gpusched-runs" / "list" / "queue.db")
    assert tree_of(repo).dirty
    mine = [str(repo / "gpusched-runs" / "list"), "/elsewhere", str(repo)]
    assert describe(str(repo), mine) == WorkTree(str(repo), git(repo, "rev-parse", "HEAD"), False)
    write(repo / "gpusched-runs" / "other")
    found = describe(str(repo), mine)
    assert found is not None and found.dirty


def test_a_changed_submodule_makes_a_tree_dirty(repo: Path, tmp_path: Path) -> None:
    write(tmp_path / "lib" / "net.py", "v1")
    git(tmp_path / "lib", "init", "-q")
    commit(tmp_path / "lib")
    git(repo, "submodule", "-q", "add", str(tmp_path / "lib"), "third")
    commit(repo)
    assert not tree_of(repo).dirty
    write(repo / "third" / "new.py")
    assert tree_of(repo).dirty


def test_other_kinds_of_work_trees(repo: Path, tmp_path: Path) -> None:
    head = git(repo, "rev-parse", "HEAD")
    git(repo, "worktree", "add", "-q", "--detach", str(tmp_path / "second\nline"))
    assert describe(str(tmp_path / "second\nline")) == WorkTree(str(tmp_path / "second\nline"), head, False)
    (tmp_path / "link").symlink_to(repo)
    assert describe(str(tmp_path / "link" / "lib")) == WorkTree(str(repo), head, False)


def test_where_git_knows_no_work_tree(repo: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    assert describe(str(fresh)) is None
    git(fresh, "init", "-q")
    assert describe(str(fresh)) is None  # no commit yet
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare")
    assert describe(str(tmp_path / "bare")) is None
    assert describe(str(repo / ".git")) is None
    assert describe(str(repo / "nowhere")) is None
    (repo / ".git" / "HEAD").write_text("nonsense")
    assert describe(str(repo)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_tree_of_somebody_else(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.delenv("SUDO_UID", raising=False)
    for path in (repo, repo / ".git"):
        os.chown(path, 4321, 4321)
    assert describe(str(repo)) is None


def test_the_environment_of_a_git_hook_is_not_heeded(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nothing"))
    assert not tree_of(repo).dirty


def test_a_box_without_git(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert describe(str(repo)) is None


def test_a_git_that_hangs_is_ended(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "bin" / "git", f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 60\n", 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    began = time.monotonic()
    assert describe(str(repo), limit_s=0.3) is None
    assert time.monotonic() - began < 5
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")


def test_looking_changes_nothing(repo: Path) -> None:
    os.utime(repo / "train.py")  # so that a careless `git status` would write the index anew
    before = (repo / ".git" / "index").stat().st_mtime_ns, sorted(os.listdir(repo / ".git"))
    describe(str(repo))
    assert ((repo / ".git" / "index").stat().st_mtime_ns, sorted(os.listdir(repo / ".git"))) == before


def test_no_helper_of_the_repository_is_started(repo: Path, tmp_path: Path) -> None:
    hook = write(tmp_path / "hook", f"#!/bin/sh\ntouch {tmp_path}/ran\n", 0o755)
    git(repo, "config", "core.fsmonitor", str(hook))
    assert not tree_of(repo).dirty
    assert not (tmp_path / "ran").exists()


# ---- copies ----------------------------------------------------------------------------------------


def test_a_copy_is_the_tree_as_it_is(repo: Path, target: str) -> None:
    write(repo / "train.py", "print(2)\n")
    git(repo, "add", "train.py")
    write(repo / "train.py", "print(3)\n")
    (repo / "lib" / "net.py").unlink()
    write(repo / "new" / "café\n\udce9.py".encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape"), "new")
    (repo / "link").symlink_to("../outside/data")
    (repo / "loop").symlink_to("loop")
    write(repo / "tool", "#!/bin/sh\n", 0o750)
    found = copy_of(repo, target)
    assert files_in(found) == {
        ".gitignore": "data/\n*.log\n",
        "train.py": "print(3)\n",
        "run.sh": "exit 0\n",
        "new/café\n\udce9.py": "new",
        "link": "-> ../outside/data",
        "loop": "-> loop",
        "tool": "#!/bin/sh\n",
    }
    modes = {name: stat.S_IMODE((found / name).stat().st_mode) for name in ("run.sh", "tool", "train.py")}
    assert modes == {name: stat.S_IMODE((repo / name).stat().st_mode) for name in modes}
    assert (found / "run.sh").stat().st_mtime_ns == (repo / "run.sh").stat().st_mtime_ns
    for private in (found, Path(target)):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert os.listdir(target) == [found.name]
    assert found.name.startswith(git(repo, "rev-parse", "HEAD")[:12] + "-")


def test_a_copy_shares_nothing_that_can_be_written(repo: Path, target: str) -> None:
    write(repo / "train.py", "x" * 100_000)
    found = copy_of(repo, target)
    with open(found / "train.py", "r+") as file:
        file.write("y")
    assert (repo / "train.py").read_text() == "x" * 100_000
    with open(repo / "lib" / "net.py", "r+") as file:
        file.write("y")
    assert (found / "lib" / "net.py").read_text() == "LAYERS = 3\n"


def test_each_start_has_a_copy_of_its_own(repo: Path, target: str) -> None:
    first = copy_of(repo, target)
    write(repo / "train.py", "print(2)\n")
    second = copy_of(repo / "lib", target)
    assert first.name[:13] == second.name[:13] == git(repo, "rev-parse", "HEAD")[:12] + "-" and first != second
    assert [(found / "train.py").read_text() for found in (first, second)] == ["print(1)\n", "print(2)\n"]


def test_files_that_git_was_told_not_to_watch_are_copied_as_they_are(repo: Path, target: str) -> None:
    git(repo, "update-index", "--skip-worktree", "train.py")
    git(repo, "update-index", "--assume-unchanged", "lib/net.py")
    first = copy_of(repo, target)
    write(repo / "train.py", "mine")
    second = copy_of(repo, target)
    assert (first / "train.py").read_text() == "print(1)\n"
    assert (second / "train.py").read_text() == "mine"
    write(repo / "lib" / "net.py", "mine")
    assert (copy_of(repo, target) / "lib" / "net.py").read_text() == "mine"


def test_repositories_inside_are_copied_as_plain_files(repo: Path, tmp_path: Path, target: str) -> None:
    write(tmp_path / "lib" / "net.py", "v1")
    write(tmp_path / "lib" / ".gitignore", "*.o\n")
    git(tmp_path / "lib", "init", "-q")
    commit(tmp_path / "lib")
    git(repo, "submodule", "-q", "add", str(tmp_path / "lib"), "third/lib")
    git(repo, "submodule", "-q", "add", str(tmp_path / "lib"), "third/empty")
    commit(repo)
    git(repo, "submodule", "-q", "deinit", "-f", "third/empty")
    git(repo, "clone", "-q", str(tmp_path / "lib"), "own")
    write(repo / "third" / "lib" / "net.py", "changed")
    write(repo / "third" / "lib" / "net.o", "ignored")
    write(repo / "own" / "more.py", "more")
    found = copy_of(repo, target)
    inside = {name: text for name, text in files_in(found).items() if "/" in name}
    assert inside == {
        "lib/net.py": "LAYERS = 3\n",
        "own/.gitignore": "*.o\n",
        "own/more.py": "more",
        "own/net.py": "v1",
        "third/lib/.gitignore": "*.o\n",
        "third/lib/net.py": "changed",
    }


def test_a_directory_that_is_a_link_now(repo: Path, tmp_path: Path, target: str) -> None:
    """Git takes lib/net.py for deleted; it is not to be found through the link either."""
    shutil.move(str(repo / "lib"), str(tmp_path / "moved"))
    (repo / "lib").symlink_to(tmp_path / "moved")
    found = copy_of(repo, target)
    assert files_in(found)["lib"] == f"-> {tmp_path / 'moved'}"
    assert "lib/net.py" not in files_in(found)


def test_the_queue_is_not_copied_into_itself(repo: Path) -> None:
    target = str(repo / "runs" / "list" / "snapshots")
    write(repo / "runs" / "list" / "queue.db", "1")
    write(repo / "runs" / "note.txt", "2")
    for _ in range(2):
        copied, _ = snapshot(str(repo), target, leave_out=[str(repo / "runs" / "list")])
        assert "runs/note.txt" in files_in(Path(copied))
        assert not Path(copied, "runs", "list").exists()
    alone = Path(snapshot(str(repo), target)[0])
    assert (alone / "runs" / "list" / "queue.db").exists()
    assert not (alone / "runs" / "list" / "snapshots").exists()


def test_a_large_tree_is_refused(repo: Path, target: str) -> None:
    write(repo / "weights.bin", "0" * 40_000)
    with pytest.raises(
        GpuschedError, match=r"holds 40,\d\d\d bytes, more than are copied for a run \(10,000\)"
    ) as caught:
        snapshot(str(repo), target, limit_bytes=10_000)
    assert ".gitignore" in caught.value.hint and caught.value.where == str(repo)
    assert not os.listdir(target)


def test_a_tree_that_git_cannot_list_is_refused(repo: Path, target: str) -> None:
    (repo / ".git" / "index").write_text("nonsense")
    with pytest.raises(GpuschedError, match="git cannot list the files") as caught:
        snapshot(str(repo), target)
    assert caught.value.where == str(repo)
    assert not os.listdir(target)


@pytest.fixture
def restless(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Something happens in the repository behind each copy, as often as there are words left in this list."""
    words: list[str] = []
    real = tree_copy._copy_files

    def copy_files(root: str, to: str, leave_out: Iterable[str], limit_bytes: int) -> None:
        real(root, to, leave_out, limit_bytes)
        if words:
            word = words.pop()
            if word == "commit":
                commit(repo)
            else:
                write(repo / word, "".join(words) or "last")

    monkeypatch.setattr(tree_copy, "_copy_files", copy_files)
    yield words


def test_a_commit_meanwhile_is_refused(repo: Path, target: str, restless: list[str]) -> None:
    restless.append("commit")
    with pytest.raises(GpuschedError, match="changes while it is copied"):
        copy_of(repo, target)
    assert not os.listdir(target)


def test_a_change_meanwhile_makes_the_copy_dirty(repo: Path, target: str, restless: list[str]) -> None:
    assert not snapshot(str(repo), target)[1].dirty
    restless.append("train.py")
    assert snapshot(str(repo), target)[1] == WorkTree(str(repo), git(repo, "rev-parse", "HEAD"), True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read all")
def test_a_file_that_cannot_be_read_is_named(repo: Path, target: str) -> None:
    write(repo / "secret", "", 0)
    with pytest.raises(GpuschedError, match="cannot be copied: Permission denied") as caught:
        copy_of(repo, target)
    assert caught.value.where == str(repo / "secret")


def test_a_place_that_cannot_be_written_is_named(repo: Path, tmp_path: Path) -> None:
    write(tmp_path / "file")
    with pytest.raises(GpuschedError, match="cannot be copied: Not a directory"):
        copy_of(repo, str(tmp_path / "file" / "snapshots"))


# ---- the directories of jobs -----------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories about which git was asked."""
    found: list[str] = []

    def listening(root: str, leave_out: object = ()) -> WorkTree | None:
        found.append(root)
        return describe(root)

    monkeypatch.setattr(work_tree, "describe", listening)
    return found


def test_git_is_asked_once_for_a_tree(repo: Path, tmp_path: Path, asked: list[str]) -> None:
    head = git(repo, "rev-parse", "HEAD")
    dirs = JobDirs(str(repo))
    for n in range(50):
        place = os.fsencode(repo / "data" / "runs" / str(n))  # not there yet
        assert dirs.resolve(place) == (place, head)
        assert dirs.resolve(os.fsencode(tmp_path / str(n)))[1] == ""
    assert asked == [str(repo)]
    assert dirs.resolve(b"/") == (b"/", "")


def test_links_lead_to_the_tree_that_they_lead_to(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(repo / "lib")
    (repo / "out").symlink_to(tmp_path)
    dirs = JobDirs(str(repo))
    assert dirs.resolve(os.fsencode(tmp_path / "link"))[1] == git(repo, "rev-parse", "HEAD") + "+dirty"
    assert dirs.resolve(os.fsencode(repo / "out" / "elsewhere"))[1] == ""
    assert dirs.resolve(os.fsencode(repo / "lib" / ".." / "lib"))[1] != ""


def test_what_git_said_counts_for_a_while(repo: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = JobDirs(str(repo))
    place = os.fsencode(repo)
    clean = dirs.resolve(place)[1]
    write(repo / "new.py")
    dirs.prepare()
    assert dirs.resolve(place)[1] == clean
    monkeypatch.setattr(job_dirs, "FRESH_S", 0.0)
    dirs = JobDirs(str(repo))
    dirty = dirs.resolve(place)[1]
    assert dirty == clean + "+dirty"
    (repo / "new.py").unlink()
    dirs.prepare()
    assert dirs.resolve(place)[1] == clean
    assert len(asked) == 3


def test_jobs_in_the_tree_get_places_in_the_copy(repo: Path, tmp_path: Path, target: str) -> None:
    git(tmp_path, "clone", "-q", str(repo), "other")
    (repo / "data" / "runs").mkdir()
    (tmp_path / "link").symlink_to(repo / "lib")
    head = git(repo, "rev-parse", "HEAD")
    dirs = JobDirs(str(repo / "lib"), copies=target)
    assert dirs.resolve(os.fsencode(repo)) == (os.fsencode(repo), head)  # nothing is copied yet
    assert not os.path.exists(target)
    dirs.prepare()
    (copy,) = [Path(target) / name for name in os.listdir(target)]

    def place(directory: Path) -> Path:
        where, commit_there = dirs.resolve(os.fsencode(directory))
        assert commit_there == head
        return Path(os.fsdecode(where))

    assert place(repo) == copy
    assert place(repo / "lib") == place(tmp_path / "link") == place(repo / "data" / ".." / "lib") == copy / "lib"
    assert place(repo / "data" / "runs") == copy / "data" / "runs" and (copy / "data" / "runs").is_dir()
    assert place(repo / "nowhere") == copy / "nowhere" and not (copy / "nowhere").exists()
    assert place(tmp_path / "other") == tmp_path / "other"
    assert dirs.resolve(os.fsencode(tmp_path)) == (os.fsencode(tmp_path), "")
    again = JobDirs.from_json(dirs.to_json())
    again.prepare()
    assert again.resolve(os.fsencode(repo / "lib")) == (os.fsencode(copy / "lib"), head)
    write(repo / "train.py", "changed since")
    dirs.prepare()
    assert place(repo) == copy and (copy / "train.py").read_text() == "print(1)\n"


def test_a_snapshot_of_what_git_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GpuschedError, match="here is none") as caught:
        JobDirs(str(tmp_path), copies=str(tmp_path / "snapshots"))
    assert "without --snapshot" in caught.value.hint


def test_a_snapshot_without_git_is_refused(repo: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(GpuschedError, match="git is not installed"):
        JobDirs(str(repo), copies=target)


# ---- from end to end -------------------------------------------------------------------------------


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path / "box", gpus="1") as box:
        git(box.work, "init", "-q")
        write(box.work / "say.txt", "as it was")
        write(box.work / "sub" / "here.txt", "in sub")
        write(box.work / ".gitignore", "list.txt\ngo\n")
        commit(box.work)
        yield box


WAIT = "until test -e $HOME/go; do sleep 0.05; done; cat say.txt"


def test_jobs_run_from_the_tree_as_it_was(box: Box) -> None:
    head = git(box.work, "rev-parse", "HEAD")
    write(box.work / "say.txt", "changed before")
    listed = box.write(WAIT, "cat say.txt", "[cwd=sub] cat here.txt ../say.txt")
    run = box.start("run", listed, "--snapshot", "--gpus-per-job", "0", "--cpu-jobs", "1")
    wait_for(lambda: box.running() == 1)
    write(box.work / "say.txt", "changed while they wait")
    (box.home / "go").touch()
    assert run.wait().code == 0
    assert [row.said() for row in box.jobs()] == ["changed before"] * 2 + ["in subchanged before"]
    copy = box.queue() / "snapshots"
    for job in box.metrics()["jobs"]:
        assert (job["git_commit"], job["git_dirty"]) == (head, True)
        assert Path(job["cwd"]).is_relative_to(copy)
    assert len(os.listdir(copy)) == 1
    # the same list again is the same jobs, whatever directory they ran in
    assert box.gpusched("run", listed, "--gpus-per-job", "0").code == 0
    assert [row.job.attempts for row in box.jobs()] == [1, 1, 1]


def test_a_line_that_is_added_later_runs_in_the_copy_of_this_start(box: Box) -> None:
    listed = box.write(WAIT)
    run = box.start("run", listed, "--snapshot", "--gpus-per-job", "0", "--cpu-jobs", "1")
    wait_for(lambda: box.running() == 1)
    write(box.work / "say.txt", "changed")
    box.write(WAIT, "cat say.txt")
    wait_for(lambda: len(box.jobs()) == 2)
    (box.home / "go").touch()
    assert run.wait().code == 0
    assert [row.said() for row in box.jobs()] == ["as it was"] * 2


def test_another_start_takes_the_tree_as_it_is_by_then(box: Box) -> None:
    """What still waits gets the newer copy, and keeps it when the list is read again."""
    listed = box.write(WAIT, "cat say.txt")
    run = box.start("run", listed, "--snapshot", "--gpus-per-job", "0", "--cpu-jobs", "1")
    wait_for(lambda: box.running() == 1)
    write(box.work / "say.txt", "newer")
    assert box.gpusched("run", listed, "--snapshot", "--gpus-per-job", "0", "--cpu-jobs", "1").code == 75
    write(box.work / "say.txt", "newest")
    box.write(WAIT, "cat say.txt", "cat say.txt # again")
    wait_for(lambda: len(box.jobs()) == 3)
    (box.home / "go").touch()
    assert run.wait().code == 0
    assert [row.said() for row in box.jobs()] == ["as it was", "newer", "newer"]


def test_each_record_has_the_commit(box: Box) -> None:
    head = git(box.work, "rev-parse", "HEAD")
    elsewhere = box.home / "elsewhere"
    elsewhere.mkdir()
    ended = box.run("pwd", f"[cwd={elsewhere}] pwd", options="--gpus-per-job 0")
    assert ended.code == 0, ended.text
    first, second = box.metrics()["jobs"]
    assert (first["git_commit"], first["git_dirty"], first["cwd"]) == (head, False, str(box.work))
    assert (second["git_commit"], second["git_dirty"]) == (None, None)
    assert git(box.work, "status", "--porcelain") == ""  # the queue's directory is none of the tree's business


def test_a_snapshot_outside_git_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with Box(tmp_path / "box", gpus="1") as box:
        ended = box.run("true", options="--snapshot")
        assert ended.code == 2
        assert "--snapshot copies a git work tree with a commit, and here is none" in ended.err
        assert not box.queue().exists()
