"""Without any transform: every verb runs as it is written."""

import concurrent.futures
import threading

import numpy as np
import pytest

import dynemb_jax as dj
from tests.plugins import OPTIMIZERS
from tests.transform.steps import check_steps, train_step
from tests.twin import Twin, random_grads


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_eager_steps_equal_the_dictionary(optimizer):
    check_steps(train_step, Twin(optimizer=optimizer))


def test_every_verb_in_turn_equals_the_dictionary():
    twin = Twin(optimizer="adam_row")

    twin.train([1, 2, 3])
    twin.find([1, 9])
    twin.assign([9, 1], random_grads((2, 4)))
    twin.train([9, 9, 1])
    twin.erase([9, 2])
    twin.train([2, 9, 3])

    twin.check([1, 2, 3, 9])


def test_two_threads_train_two_collections():
    twins = [Twin(optimizer="adam_row", seed=seed) for seed in range(2)]

    def train(twin):
        for step in range(20):
            twin.train(np.arange(64) + 40 * step, seed=step)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(train, twins))

    for twin in twins:
        twin.check()


def test_a_thread_that_finds_while_another_trains_and_grows_misses_no_known_key():
    twin = Twin(dim=2, optimizer="sgd")
    known = np.arange(64)
    rows = np.full((64, 2), 7, np.float32)
    twin.assign(known, rows)
    serving, done = twin.emb, threading.Event()

    def serve():
        answers = []
        while not done.is_set():
            answers.append(dj.lookup(serving, known, train=False)[0].rows)
        return answers

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answers = pool.submit(serve)
        for step in range(30):
            ids = np.arange(1000, 1512) + 512 * step
            acts, twin.emb = dj.lookup(twin.emb, ids)
            twin.emb = dj.apply_gradients(twin.emb, acts, np.ones((512, 2), np.float32))
            twin.emb = dj.erase(twin.emb, "items", ids[::2])
        done.set()

    assert dj.stats(twin.emb)["items"].growths >= 2
    assert answers.result()
    for answer in answers.result():
        np.testing.assert_array_equal(answer, rows)


def test_old_state_stays_readable_after_eager_steps():
    twin = Twin()
    old = twin.emb
    twin.train([1, 2])

    acts, _ = dj.lookup(old, np.array([1, 2]), train=False)
    twin.oracle.find([1, 2])

    np.testing.assert_allclose(acts.rows, twin.oracle.values([1, 2]), rtol=1e-5)
    twin.check()
