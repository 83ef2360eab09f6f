"""`python -m gpusched.commands.publish`: publish the parts of a pool until standard input ends, and then the rest.

Its first line is the order, as JSON; each further line has numbers of the progress. Each line of the output says how
far the upload is. `python -m gpusched.commands.publish SOURCE TARGET` writes one file in another format.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress

import msgspec
from gpusched.commands.publish.formats import convert
from gpusched.commands.publish.parts import STEP_S, PartsPublisher
from gpusched.commands.publish.tracker import Tracker

from gpusched.pool.publication import Publication


def main() -> int:
    if sys.argv[1:]:
        convert(*sys.argv[1:])
        return 0
    parent = os.getppid()
    publication = msgspec.json.decode(sys.stdin.buffer.readline(), type=Publication)
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is none of them
    publisher = PartsPublisher(publication)
    work = threading.Thread(target=publisher.run, daemon=True)
    work.start()
    tracker = Tracker(publication)
    with suppress(ConnectionResetError):  # the coordinator was killed
        for line in sys.stdin.buffer:
            tracker.log(json.loads(line))
            answer(answers, publisher)
    publisher.finish()
    tracker.finish()
    while work.is_alive() and os.getppid() == parent:  # if the coordinator was killed, the next one starts a new stage
        work.join(STEP_S)
        answer(answers, publisher)
    return 0


def answer(file: int, publisher: PartsPublisher) -> None:
    with suppress(ConnectionError):  # the coordinator was killed
        os.write(file, json.dumps(publisher.status).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
