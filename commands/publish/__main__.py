"""`python -m gpusched.commands.publish`: publish the parts of a pool until standard input ends, and then the rest.

Its first line is the order, as JSON; each further line has numbers of the progress. Each line of the output says how
far the upload is. `python -m gpusched.commands.publish SOURCE TARGET` writes one file in another format.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from gpusched.commands.publish.formats import convert
from gpusched.commands.publish.parts import STEP_S, PartsPublisher
from gpusched.commands.publish.tracker import Tracker

from gpusched.pool.publication import Publication


def main() -> int:
    if sys.argv[1:]:
        convert(*sys.argv[1:])
        return 0
    parent = os.getppid()
    publication = Publication.from_json(sys.stdin.buffer.readline())
    output = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is none of the answers
    publisher = PartsPublisher(publication)
    work = threading.Thread(target=publisher.run, daemon=True)
    work.start()
    tracker = Tracker(publication)
    for line in sys.stdin.buffer:
        tracker.log(json.loads(line))
        print(json.dumps(publisher.status), file=output, flush=True)
    publisher.finish()
    tracker.finish()
    while work.is_alive() and os.getppid() == parent:  # if the coordinator was killed, the next one starts a new stage
        work.join(STEP_S)
        print(json.dumps(publisher.status), file=output, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
