"""Groups up through a Unix socket in a private folder of this run.

Each Searcher has a connection of its own, so one that is killed in the middle of a message spoils nobody else's; what
it had not sent whole is not delivered. Connections are authenticated with a key the launcher has just made, which is
what makes unpickling their messages safe.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from tba.channels.base import Message

ADDRESS = "groups"
_WAIT_SECONDS = 0.2
_POLL_SECONDS = 0.02


class SocketGroupSender:
    """Connects when the Trainer listens; gives up waiting for it when `alive` says so.

    What is sent while the Trainer is far behind waits, within the block that `waiting` makes.
    """

    def __init__(
        self,
        directory: Path,
        key: bytes,
        alive: Callable[[], bool],
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._waiting = waiting
        while True:
            try:
                self._connection = Client(str(directory / ADDRESS), family="AF_UNIX", authkey=key)
                return
            except (FileNotFoundError, ConnectionRefusedError):
                if not alive():
                    raise
                time.sleep(_POLL_SECONDS)

    def send(self, message: Message) -> None:
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        with self._waiting():
            self._connection.send_bytes(data)

    def close(self) -> None:
        self._connection.close()


class SocketGroupReceiver:
    """Reads in the background, so that Searchers do not wait for the Trainer's next sync.

    At most `capacity` messages are held; beyond that the readers stop, the sockets fill and the Searchers wait.
    """

    def __init__(self, directory: Path, key: bytes, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._messages: deque[Message] = deque()
        self._changed = threading.Condition()
        self._num_connections = 0
        self._listener = Listener(str(directory / ADDRESS), family="AF_UNIX", backlog=64, authkey=key)
        threading.Thread(target=self._accept, name="accept-searchers", daemon=True).start()

    def receive(self, wait: bool = False) -> list[Message]:
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: bool(self._messages), _WAIT_SECONDS)
            messages = list(self._messages)
            self._messages.clear()
            self._changed.notify_all()
        return messages

    @property
    def is_open(self) -> bool:
        return self._num_connections > 0

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, ConnectionError):
                continue  # a stranger, or a Searcher killed while it connected: the next one is welcome
            except OSError:
                return  # the listener was closed
            with self._changed:
                self._num_connections += 1
            threading.Thread(target=self._read, args=(connection,), name="read-searcher", daemon=True).start()

    def _read(self, connection: Connection[Any, Any]) -> None:
        try:
            while True:
                message = pickle.loads(connection.recv_bytes())
                with self._changed:
                    self._changed.wait_for(lambda: len(self._messages) < self._capacity)
                    self._messages.append(message)
                    self._changed.notify_all()
        except (EOFError, OSError):
            pass  # hung up, or killed within a message: that message never arrived
        finally:
            with self._changed:
                self._num_connections -= 1
                self._changed.notify_all()
            connection.close()
