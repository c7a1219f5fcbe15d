"""The sequential example: what it trains on, and how it ranks."""

import numpy as np
import pytest

pytest.importorskip("typer")
sequential = pytest.importorskip("sequential")


def users(*lengths):
    rng = np.random.default_rng(0)
    return [rng.permutation(1000)[:n].astype(np.int64) + 10**12 for n in lengths]


@pytest.mark.parametrize("seed", range(5))
def test_every_item_but_the_first_of_a_user_is_predicted_once_an_epoch(seed):
    sequences = users(2, 3, 50, 51, 52, 230)

    pieces = sequential.windows(sequences, np.random.default_rng(seed))

    predicted = [tuple(pair) for piece in pieces for pair in np.stack([piece[:-1], piece[1:]], 1)]
    expected = [tuple(pair) for s in sequences for pair in np.stack([s[:-1], s[1:]], 1)]
    assert sorted(predicted) == sorted(expected)
    assert max(len(piece) for piece in pieces) <= sequential.LENGTH + 1


def test_batches_hold_all_pieces_and_fit():
    sequences = users(*range(2, 49), *[40] * 60)

    groups = list(sequential.packed(sequences))

    assert [len(s) for group in groups for s in group] == [len(s) for s in sequences]
    assert all(len(group) <= sequential.BATCH for group in groups)
    assert all(sum(map(len, group)) <= sequential.CAPACITY for group in groups)


def test_positions_lead_from_the_padded_matrix_to_the_ragged_ids():
    sequences = users(3, 1, 50)
    batch = sequential.ragged(sequences)

    place, meant = sequential.positions(batch.row_splits)

    low = np.asarray(batch.ids.pairs)[..., 0]
    for row, sequence in enumerate(sequences):
        got = low[np.asarray(place)[row][np.asarray(meant)[row]]]
        np.testing.assert_array_equal(got, (sequence % 2**32).astype(np.uint32))
    assert not np.asarray(meant)[3:].any()
    assert np.asarray(place).max() < sequential.CAPACITY


def test_a_rank_counts_unrated_known_items_that_score_no_less():
    data = sequential.Split(
        users=[np.array([10, 20]), np.array([30])],
        last=np.array([40, 60]),
        items=np.array([10, 20, 30, 40, 50, 60]),
    )
    score = np.array([[9, 9, 5, 3, 3, 9], [1, 2, 9, 4, 5, 6]], np.float32)
    known = np.array([True] * 5 + [False])

    rank = sequential.ranks(score, data, known)

    # 30 is above 40, 50 ties with it and counts as above, 60 is in no table; 60 is not ranked.
    assert rank.tolist() == [2, 6]


def test_figures_of_ranks():
    hit_rate, ndcg = sequential.figures(np.array([0, 2, 9, 10]))

    assert hit_rate == 0.75
    assert ndcg == pytest.approx((1 + 1 / 2 + 1 / np.log2(11)) / 4)
