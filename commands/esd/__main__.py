"""`python -m gpusched.commands.esd`: the stage, by the warm process of its shepherd where there is one."""

import sys

from .warm import hand_over

if __name__ == "__main__":
    code = hand_over(sys.argv[1:])
    if code is None:
        from .command_line import main

        code = main()
    sys.exit(code)
