"""Picks one of the prompts that can be drawn, each as likely, in a way that can be repeated after a restart."""

from __future__ import annotations

from tba.buffer.prompt_list import PromptTrajectories


class PromptPicker:
    """Records in an order that follows from the calls of `add` and `remove` alone.

    Whether a record can be drawn (`mark`) does not move it: two sets with equal calls of `add` and `remove` and the
    same records marked give the same record for a rank, whatever the order of the marks. The buffer's draws can be
    repeated after a restart because of it.
    """

    def __init__(self) -> None:
        self._records: list[PromptTrajectories] = []
        self._slots: dict[str, int] = {}
        self._size = 1
        self._counts = [0, 0]
        """A binary tree: node i counts the marked slots below it, its children are 2i and 2i + 1, leaves come last."""

    @property
    def num_marked(self) -> int:
        return self._counts[1]

    def add(self, record: PromptTrajectories) -> None:
        if len(self._records) == self._size:
            self._double()
        self._slots[record.prompt.id] = len(self._records)
        self._records.append(record)

    def remove(self, record: PromptTrajectories) -> None:
        """Take the record out; the last one moves into its slot."""
        last, was_marked = self._records[-1], self._is_marked(self._records[-1])
        self.mark(last, False)
        self.mark(record, False)
        slot = self._slots.pop(record.prompt.id)
        self._records.pop()
        if last is not record:
            self._records[slot] = last
            self._slots[last.prompt.id] = slot
            self.mark(last, was_marked)

    def mark(self, record: PromptTrajectories, can_be_drawn: bool) -> None:
        if self._is_marked(record) == can_be_drawn:
            return
        node = self._size + self._slots[record.prompt.id]
        while node:
            self._counts[node] += 1 if can_be_drawn else -1
            node //= 2

    def pick(self, rank: int) -> PromptTrajectories:
        """The marked record with `rank` marked ones before it."""
        node = 1
        while node < self._size:
            node *= 2
            if rank >= self._counts[node]:
                rank -= self._counts[node]
                node += 1
        return self._records[node - self._size]

    def _is_marked(self, record: PromptTrajectories) -> bool:
        return bool(self._counts[self._size + self._slots[record.prompt.id]])

    def _double(self) -> None:
        # The old tree becomes the left half of the new one: level by level, each half as wide as its new level.
        counts = [0, self._counts[1]]
        level = 1
        while level <= self._size:
            counts += self._counts[level : 2 * level] + [0] * level
            level *= 2
        self._counts = counts
        self._size *= 2
