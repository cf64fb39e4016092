from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from channel_processes import payload, publish_back_to_back, send_for_ever
from numpy.typing import NDArray

from tba.channels.base import Message
from tba.channels.inline import InlineGroups, InlineWeights
from tba.channels.shared_memory import LAYOUT, WEIGHTS, SharedWeightPublisher, SharedWeightSubscriber
from tba.channels.socket import ADDRESS, SocketGroupReceiver, SocketGroupSender
from tba.testing import make_group
from tba.types import NEVER_PUBLISHED, Group, Report, Version, WeightUpdate

spawn = multiprocessing.get_context("spawn")
at = partial(Version, 0)


@contextmanager
def running(target: Callable[..., None], *arguments: Any) -> Iterator[SpawnProcess]:
    """Another process, which does not outlive the test whatever happens in it."""
    process = spawn.Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def assert_is_of(update: WeightUpdate | None, version: Version, num_words: int) -> None:
    """The label is this version, and every byte of the content agrees with it."""
    assert update is not None
    assert update.version == version
    expected = payload(version, num_words)
    assert update.bytes_by_name.keys() == expected.keys()
    for name, tensor in update.bytes_by_name.items():
        assert np.array_equal(tensor, expected[name])


def subscriber(directory: Path) -> SharedWeightSubscriber:
    return SharedWeightSubscriber(directory, lambda: True)


# ---------------------------------------------------------------------------------------------------------------------
# Weights down: shared memory
# ---------------------------------------------------------------------------------------------------------------------


def test_a_note_comes_with_its_version(tmp_path: Path) -> None:
    publisher, reader = SharedWeightPublisher(tmp_path), subscriber(tmp_path)
    inline = InlineWeights()
    for step, note in enumerate([b"", b"first", b"a longer one" * 1_000, b"", b"last"]):
        for channel in (publisher, inline):
            channel.publish(at(step), payload(at(step), 8), note)
        for update in (reader.newer_than(at(step - 1)), inline.newer_than(at(step - 1))):
            assert_is_of(update, at(step), 8)
            assert update is not None
            assert update.note == note
    assert len(list(tmp_path.glob("note-*"))) == 2, "older ones are removed"


def test_a_reader_that_is_overtaken_gets_the_newest_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it reads the note of one version, three more are published: that file is gone, and the slot another."""
    publisher, reader = SharedWeightPublisher(tmp_path), subscriber(tmp_path)
    publisher.publish(at(0), payload(at(0), 8), b"0")
    reads = []
    read_bytes = Path.read_bytes

    def overtaken(path: Path) -> bytes:
        if not reads:
            for step in (1, 2, 3):
                publisher.publish(at(step), payload(at(step), 8), str(step).encode())
        reads.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", overtaken)
    update = reader.newer_than(NEVER_PUBLISHED)
    assert_is_of(update, at(3), 8)
    assert update is not None
    assert update.note == b"3"
    assert reads == ["note-0-0", "note-0-3"]


def test_a_damaged_note_is_not_believed(tmp_path: Path) -> None:
    publisher = SharedWeightPublisher(tmp_path)
    publisher.publish(at(1), payload(at(1), 8), b"true")
    (tmp_path / "note-0-1").write_bytes(b"false")
    with pytest.raises(RuntimeError, match="checksum"):
        subscriber(tmp_path).newer_than(NEVER_PUBLISHED)


def test_only_newer_versions_are_given(tmp_path: Path) -> None:
    publisher, reader = SharedWeightPublisher(tmp_path), subscriber(tmp_path)
    publisher.publish(at(0), payload(at(0), 8))
    assert_is_of(reader.newer_than(NEVER_PUBLISHED), at(0), 8)
    assert reader.newer_than(at(0)) is None
    publisher.publish(at(3), payload(at(3), 8))
    publisher.publish(at(5), payload(at(5), 8))
    assert_is_of(reader.newer_than(at(0)), at(5), 8)
    assert_is_of(reader.newer_than(at(4)), at(5), 8)
    assert reader.newer_than(at(5)) is None
    assert reader.newer_than(at(6)) is None
    publisher.publish(Version(1, 2), payload(Version(1, 2), 8))
    assert_is_of(reader.newer_than(at(6)), Version(1, 2), 8)
    assert reader.newer_than(Version(1, 2)) is None


def test_a_version_may_be_published_again(tmp_path: Path) -> None:
    """A resumed Trainer starts with the version of its checkpoint."""
    publisher = SharedWeightPublisher(tmp_path)
    publisher.publish(at(4), payload(at(4), 8))
    publisher.publish(at(4), payload(at(4), 8))
    assert_is_of(subscriber(tmp_path).newer_than(at(3)), at(4), 8)


def test_an_odd_number_of_bytes_travels_whole(tmp_path: Path) -> None:
    tensors = {"a": np.arange(3, dtype=np.uint8), "b": np.arange(10, 20, dtype=np.uint8)}
    SharedWeightPublisher(tmp_path).publish(at(1), tensors)
    update = subscriber(tmp_path).newer_than(at(0))
    assert update is not None
    assert {name: tensor.tolist() for name, tensor in update.bytes_by_name.items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("finished", [True, False])
def test_subscribers_are_told_that_the_trainer_ended(tmp_path: Path, finished: bool) -> None:
    publisher, reader = SharedWeightPublisher(tmp_path), subscriber(tmp_path)
    publisher.publish(at(1), payload(at(1), 8))
    assert (reader.closed, reader.finished) == (False, False)
    publisher.publish(at(2), payload(at(2), 8))
    publisher.close(finished)
    assert (reader.closed, reader.finished) == (True, finished)
    assert_is_of(reader.newer_than(at(1)), at(2), 8)


def test_a_publisher_that_never_published_may_close(tmp_path: Path) -> None:
    SharedWeightPublisher(tmp_path).close(finished=False)
    assert not any(tmp_path.iterdir())


def test_a_subscriber_waits_for_the_first_version_while_the_trainer_lives(tmp_path: Path) -> None:
    publisher = SharedWeightPublisher(tmp_path)
    asked = 0

    def alive() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            publisher.publish(at(7), payload(at(7), 8))
        return True

    reader = SharedWeightSubscriber(tmp_path, alive)
    reader.wait_for_first()
    assert_is_of(reader.newer_than(at(-1)), at(7), 8)
    assert asked == 3


def test_a_subscriber_does_not_wait_for_a_dead_trainer(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="the Trainer ended before it published any weights"):
        SharedWeightSubscriber(tmp_path, lambda: False).wait_for_first()


def test_the_layout_appears_only_with_a_whole_version(tmp_path: Path) -> None:
    """A reader that finds the layout may read at once."""
    publisher = SharedWeightPublisher(tmp_path)
    with pytest.raises(ValueError):
        publisher.publish(at(1), Interrupted(payload(at(1), 8)))
    assert not (tmp_path / LAYOUT).exists()


def test_no_version_is_torn_or_mislabelled(tmp_path: Path) -> None:
    """Another process publishes without a pause, so that many copies are overtaken while they are made."""
    num_words, enough = 40_000, spawn.Event()
    seen = [at(0)]
    with running(publish_back_to_back, tmp_path, num_words, enough) as process:
        reader = SharedWeightSubscriber(tmp_path, process.is_alive)
        reader.wait_for_first()
        while not reader.closed:
            update = reader.newer_than(seen[-1])
            if update is not None:
                assert_is_of(update, update.version, num_words)
                seen.append(update.version)
                if len(seen) == 500:
                    enough.set()
        process.join()
        assert process.exitcode == 0
    assert seen == sorted(set(seen))
    assert reader.finished


class Interrupted(dict[str, Any]):
    """Tensors whose publication stops after the first: as when the process is killed in the middle of a write."""

    def __init__(self, tensors: Mapping[str, NDArray[np.uint8]]) -> None:
        names = list(tensors)
        super().__init__(tensors)
        self[names[-1]] = Unwritable(tensors[names[-1]])


class Unwritable:
    """Has a length, and nothing that could be copied."""

    def __init__(self, tensor: NDArray[np.uint8]) -> None:
        self._length = len(tensor)

    def __len__(self) -> int:
        return self._length

    def __array__(self, *args: Any, **kwargs: Any) -> NDArray[np.uint8]:
        raise ValueError("interrupted")


# Fails by the time limit: a reader that waits for the end of the write waits for ever.
def test_a_write_that_never_ended_leaves_the_version_before(tmp_path: Path) -> None:
    publisher, reader = SharedWeightPublisher(tmp_path), subscriber(tmp_path)
    publisher.publish(at(1), payload(at(1), 1_000))
    publisher.publish(at(2), payload(at(2), 1_000))
    with pytest.raises(ValueError, match="interrupted"):
        publisher.publish(at(3), Interrupted(payload(at(3), 1_000)))
    assert_is_of(reader.newer_than(at(1)), at(2), 1_000)
    assert reader.newer_than(at(2)) is None
    assert_is_of(subscriber(tmp_path).newer_than(at(-1)), at(2), 1_000)


@pytest.mark.parametrize("num_interruptions", [1, 2])
def test_a_publisher_recovers_from_a_write_that_never_ended(tmp_path: Path, num_interruptions: int) -> None:
    publisher, reader = SharedWeightPublisher(tmp_path), subscriber(tmp_path)
    publisher.publish(at(1), payload(at(1), 1_000))
    for version in map(at, range(2, 2 + num_interruptions)):
        with pytest.raises(ValueError, match="interrupted"):
            publisher.publish(version, Interrupted(payload(version, 1_000)))
    for version in map(at, (4, 5, 6)):
        publisher.publish(version, payload(version, 1_000))
        assert_is_of(reader.newer_than(at(version.step - 1)), version, 1_000)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    publisher, reader = SharedWeightPublisher(tmp_path), subscriber(tmp_path)
    publisher.publish(at(1), payload(at(1), 1_000))
    path = tmp_path / WEIGHTS
    content = bytearray(path.read_bytes())
    place = content.index(payload(at(1), 1_000)["first"].tobytes())
    content[place + 4_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="published weights of version 1 fail their checksum"):
        reader.newer_than(at(0))


@pytest.mark.parametrize("number", ["epoch", "step"])
def test_mislabelled_weights_are_refused(tmp_path: Path, number: str) -> None:
    """The checksum vouches for both numbers of the version, and for which is which."""
    publisher, reader = SharedWeightPublisher(tmp_path), subscriber(tmp_path)
    labels = np.array([2, 3], np.uint64)
    publisher.publish(Version(2, 3), payload(at(7), 1_000))
    path = tmp_path / WEIGHTS
    content = bytearray(path.read_bytes())
    place = content.index(labels.tobytes()) + (8 if number == "step" else 0)
    content[place : place + 8] = np.uint64(9).tobytes()
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="fail their checksum"):
        reader.newer_than(at(0))


# ---------------------------------------------------------------------------------------------------------------------
# Groups up: a socket
# ---------------------------------------------------------------------------------------------------------------------

KEY = b"a key of this run"


@pytest.fixture
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: those of sockets may have about a hundred characters."""
    return tmp_path_factory.mktemp("m")


@pytest.fixture
def receiver(meeting: Path) -> Iterator[SocketGroupReceiver]:
    with closing(SocketGroupReceiver(meeting, KEY)) as receiver:
        yield receiver


def sender_to(meeting: Path, key: bytes = KEY) -> SocketGroupSender:
    return SocketGroupSender(meeting, key, lambda: True)


def numbered(name: str, number: int, num_bytes: int = 0) -> Report:
    return Report("event", name, {"number": number, "ballast": bytes(num_bytes)})


def numbers(messages: list[Message], name: str) -> list[int]:
    return [m.values["number"] for m in messages if isinstance(m, Report) and m.source == name]


def receive_until(receiver: SocketGroupReceiver, enough: Callable[[list[Message]], bool]) -> list[Message]:
    messages: list[Message] = []
    while not enough(messages):
        messages += receiver.receive(wait=True)
    return messages


def drain(receiver: SocketGroupReceiver) -> list[Message]:
    """What arrives until everybody has hung up."""
    messages = receive_until(receiver, lambda _: not receiver.is_open)
    return messages + receiver.receive()


def send_all(meeting: Path, name: str, count: int, num_bytes: int = 0) -> None:
    with closing(sender_to(meeting)) as sender:
        for number in range(count):
            sender.send(numbered(name, number, num_bytes))


def in_thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def test_groups_and_reports_arrive_as_they_were(meeting: Path, receiver: SocketGroupReceiver) -> None:
    group = make_group([4, 5], [[6, 7], [8]], [0.5, -1.0], version=3, serial=9)
    report = Report("search", "searcher-0", {"reward": 0.25})
    with closing(sender_to(meeting)) as sender:
        sender.send(group)
        sender.send(report)
        received_group, received_report = receive_until(receiver, lambda messages: len(messages) == 2)
    assert received_report == report
    assert isinstance(received_group, Group)
    assert (received_group.prompt, received_group.source, received_group.serial) == (group.prompt, "searcher-0", 9)
    for received, sent in zip(received_group.trajectories, group.trajectories, strict=True):
        assert received.response.tokens.tolist() == sent.response.tokens.tolist()
        assert received.response.tokens.dtype == np.int32
        assert (received.reward, received.version) == (sent.reward, at(3))


def test_nothing_to_receive_is_an_empty_list(receiver: SocketGroupReceiver) -> None:
    assert receiver.receive() == []
    assert receiver.receive(wait=True) == []


def test_each_sender_is_heard_in_its_order(meeting: Path, receiver: SocketGroupReceiver) -> None:
    names = [f"searcher-{i}" for i in range(4)]
    threads = [in_thread(send_all, meeting, name, 300) for name in names]
    messages = receive_until(receiver, lambda messages: len(messages) == 4 * 300)
    for name in names:
        assert numbers(messages, name) == list(range(300))
    for thread in threads:
        thread.join()
    assert drain(receiver) == []


def test_a_searcher_waits_for_a_trainer_that_is_not_there_yet(meeting: Path) -> None:
    receivers: list[SocketGroupReceiver] = []

    def alive() -> bool:
        receivers.append(SocketGroupReceiver(meeting, KEY))
        return True

    with closing(SocketGroupSender(meeting, KEY, alive)) as sender:
        sender.send(numbered("late", 0))
        assert numbers(receive_until(receivers[0], bool), "late") == [0]
    receivers[0].close()


def test_a_searcher_does_not_wait_for_a_dead_trainer(meeting: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SocketGroupSender(meeting, KEY, lambda: False)


@pytest.mark.parametrize("cut", [2, 4, 60], ids=["within the length", "before the content", "within the content"])
def test_a_sender_that_dies_within_a_message_loses_that_one_only(
    meeting: Path, receiver: SocketGroupReceiver, cut: int
) -> None:
    other, dying = sender_to(meeting), sender_to(meeting)
    other.send(numbered("other", 0))
    dying.send(numbered("dying", 0))
    dying.send(numbered("dying", 1))
    frame = struct.pack("!i", 100) + bytes(100)
    os.write(dying._connection.fileno(), frame[:cut])
    dying.close()
    # Both are known to the receiver once it has heard them; then draining waits for both.
    messages = receive_until(receiver, lambda messages: {m.source for m in messages} == {"other", "dying"})
    other.send(numbered("other", 1))
    other.close()
    messages += drain(receiver)
    assert numbers(messages, "dying") == [0, 1]
    assert numbers(messages, "other") == [0, 1]


def test_a_killed_process_spoils_nobody_elses_messages(meeting: Path, receiver: SocketGroupReceiver) -> None:
    both = {"other", "killed"}
    with running(send_for_ever, meeting, KEY, "killed", 100_000) as process, closing(sender_to(meeting)) as other:
        other.send(numbered("other", 0))
        messages = receive_until(receiver, lambda messages: {m.source for m in messages} == both and len(messages) > 20)
        process.kill()
        process.join()
        other.send(numbered("other", 1))
    messages += drain(receiver)
    assert numbers(messages, "other") == [0, 1]
    found = numbers(messages, "killed")
    assert found == list(range(len(found)))


def test_a_stranger_is_refused(meeting: Path, receiver: SocketGroupReceiver) -> None:
    with pytest.raises(AuthenticationError):
        sender_to(meeting, b"another key")
    with closing(sender_to(meeting)) as sender:
        sender.send(numbered("known", 0))
    assert numbers(receive_until(receiver, bool), "known") == [0]


# Fails by the time limit: a receiver that accepts nobody any more leaves the sender waiting.
@pytest.mark.parametrize("sent", [b"", b"\x00\x00"])
def test_a_sender_that_dies_while_it_connects_keeps_nobody_out(
    meeting: Path, receiver: SocketGroupReceiver, sent: bytes
) -> None:
    """A Searcher may be killed at any moment, and is started again."""
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as dying:
            dying.connect(str(meeting / ADDRESS))
            dying.sendall(sent)
    with closing(sender_to(meeting)) as sender:
        sender.send(numbered("next", 0))
    assert numbers(receive_until(receiver, bool), "next") == [0]


class Watched(threading.Condition):
    """Tells when somebody starts to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.is_waited_for.set()
        return super().wait(timeout)


# Fails by the time limit: readers that never stop at the capacity never wait.
def test_a_slow_trainer_makes_searchers_wait_and_loses_nothing(meeting: Path) -> None:
    capacity, count, num_bytes = 5, 200, 100_000
    with closing(SocketGroupReceiver(meeting, KEY, capacity)) as receiver:
        receiver._changed = watched = Watched()
        thread = in_thread(send_all, meeting, "fast", count, num_bytes)
        watched.is_waited_for.wait()
        # The reader waits for room with one message in its hand; a few more fit into the socket, not all.
        assert len(receiver._messages) == capacity
        assert thread.is_alive()
        received: list[int] = []
        while len(received) < count:
            batch = receiver.receive(wait=True)
            assert len(batch) <= capacity
            received += numbers(batch, "fast")
        assert received == list(range(count))
        thread.join()


def test_what_was_sent_before_everybody_hung_up_can_still_be_received(meeting: Path) -> None:
    """Also what no longer fitted when the Trainer stopped receiving."""
    with closing(SocketGroupReceiver(meeting, KEY, capacity=3)) as receiver:
        for i in range(3):
            in_thread(send_all, meeting, f"searcher-{i}", 40, 10_000)
        messages = receive_until(receiver, lambda messages: len({m.source for m in messages}) == 3)
        messages += drain(receiver)
        for i in range(3):
            assert numbers(messages, f"searcher-{i}") == list(range(40))


def test_a_receiver_is_open_while_a_sender_is_connected(meeting: Path, receiver: SocketGroupReceiver) -> None:
    assert not receiver.is_open
    with closing(sender_to(meeting)) as sender:
        sender.send(numbered("searcher-0", 0))
        receive_until(receiver, lambda messages: len(messages) == 1)
        assert receiver.is_open
    assert drain(receiver) == []


def test_sending_is_a_wait(meeting: Path, receiver: SocketGroupReceiver) -> None:
    """Whoever sends to a Trainer that is far behind can say that it waits."""
    entered = []

    @contextmanager
    def waiting() -> Iterator[None]:
        entered.append(True)
        yield

    with closing(SocketGroupSender(meeting, KEY, lambda: True, waiting)) as sender:
        sender.send(numbered("searcher-0", 0))
        sender.send(numbered("searcher-0", 1))
    assert len(entered) == 2


# ---------------------------------------------------------------------------------------------------------------------
# Within one process
# ---------------------------------------------------------------------------------------------------------------------


def test_inline_weights_keep_their_own_copy() -> None:
    weights = InlineWeights()
    assert weights.newer_than(at(-1)) is None
    tensor = np.zeros(4, np.uint8)
    weights.publish(at(2), {"a": tensor})
    tensor += 1
    update = weights.newer_than(at(1))
    assert update is not None
    assert update.bytes_by_name["a"].tolist() == [0, 0, 0, 0]
    assert weights.newer_than(at(2)) is None
    weights.close(finished=True)
    assert (weights.closed, weights.finished) == (True, True)


def test_inline_groups_come_once_and_in_order() -> None:
    groups = InlineGroups()
    for number in range(3):
        groups.send(numbered("searcher-0", number))
    assert numbers(groups.receive(), "searcher-0") == [0, 1, 2]
    assert groups.receive(wait=True) == [], "who takes turns does not wait"
    assert not groups.is_open
