"""`python -m gpusched`: the same front door as the command `gpusched`. Holds nothing of its own."""

from gpusched.cli.main import main

if __name__ == "__main__":
    main()
