"""The command `tba`, and `python -m tba`. Ctrl-C is answered from the first import on."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from tba import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
