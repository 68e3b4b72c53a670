"""`unsmooth` and `python -m unsmooth`: the command line, with Ctrl-C during its imports as one line."""

import sys


def run() -> int:
    """Run the command line of this process."""
    try:
        from unsmooth.cli.main import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("unsmooth: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(run())
