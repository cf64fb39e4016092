"""What the server of `nursery.py` imports before it forks: all that a Trainer or a Searcher needs.

Its output is nobody's: a child that cannot import the same says so in its own log.
"""

import contextlib
import os

with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
    import pyarrow

    import tba.build.searcher
    import tba.build.trainer
    import tba.channels.shared_memory
    import tba.channels.socket  # noqa: F401

    # With the first array that it makes, pyarrow imports pandas if it is there: 0.2 s in every process otherwise.
    pyarrow.array([])
