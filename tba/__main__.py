"""The command `tba`, and `python -m tba`. Ctrl-C is answered from the first import on."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        from tba import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
