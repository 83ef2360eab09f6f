"""The old name of `gpusched.host.attempts.shepherd`, by which a dispatcher of version 0.1 starts it."""

import sys

from gpusched.host.attempts.shepherd import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
