"""The old name of `gpusched.host.gpus.nvml`, by which a dispatcher of version 0.1 starts it."""

import sys

from gpusched.host.gpus.nvml import main

if __name__ == "__main__":
    sys.exit(main())
