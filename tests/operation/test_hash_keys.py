"""Strings become keys by XXH3, the same on every machine and in every process."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import create, keys

# Published results of XXH3_64bits with seed 0.
KNOWN_ANSWERS = {
    "": 0x2D06800538D394C2,
    "a": 0xE6C632B61E964E1F,
    "abc": 0x78AF5F94892F3950,
}


def test_hashes_are_the_published_ones():
    hashed = dj.hash_keys(list(KNOWN_ANSWERS))

    np.testing.assert_array_equal(hashed.pairs, keys(list(KNOWN_ANSWERS.values())).pairs)


@pytest.mark.parametrize("text", ["item-7", "żółw", "", "x" * 1000])
def test_text_hashes_like_its_utf8_bytes(text):
    as_text, as_bytes = dj.hash_keys([text]), dj.hash_keys([text.encode()])

    np.testing.assert_array_equal(as_text.pairs, as_bytes.pairs)


def test_an_array_of_strings_keeps_its_shape():
    strings = np.array([["a", "bb", "a"], ["", "abc", "bb"]])

    hashed = dj.hash_keys(strings)

    assert hashed.shape == (2, 3)
    flat = dj.hash_keys([str(s) for s in strings.ravel()])
    np.testing.assert_array_equal(hashed.pairs.reshape(-1, 2), flat.pairs)


def test_a_fixed_width_array_does_not_hash_its_padding():
    wide = np.array(["a", "a-much-longer-one"])

    np.testing.assert_array_equal(dj.hash_keys(wide).pairs[0], dj.hash_keys(["a"]).pairs[0])


def test_no_strings_are_no_keys():
    assert dj.hash_keys([]).shape == (0,)


def test_hashed_keys_are_looked_up_like_keys():
    acts, emb = dj.lookup(create(), dj.hash_keys(["abc", "abc"]))

    np.testing.assert_array_equal(acts.rows[0], acts.rows[1])
    assert dj.contains(emb, "items", keys([KNOWN_ANSWERS["abc"]])).all()


@pytest.mark.parametrize("bad", [[1], [None], ["a", 1], np.array([1.0])])
def test_what_is_no_string_is_refused(bad):
    with pytest.raises(dj.errors.InputError):
        dj.hash_keys(bad)
