from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tba.rewards.batches import judged_in_batches


@given(texts=st.lists(st.text(max_size=9), max_size=20), batch_size=st.integers(1, 7))
def test_each_text_gets_its_own_verdict_and_is_read_beside_texts_of_similar_length(
    texts: list[str], batch_size: int
) -> None:
    batches: list[list[str]] = []

    def judge(batch: list[str]) -> list[str]:
        batches.append(batch)
        return [text.upper() for text in batch]

    assert judged_in_batches(texts, judge, length=len, batch_size=batch_size) == [text.upper() for text in texts]
    assert [len(text) for batch in batches for text in batch] == sorted(map(len, texts))
    assert all(len(batch) == batch_size for batch in batches[:-1])
