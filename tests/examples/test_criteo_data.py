"""Reading Criteo's format: what each field means, what is refused, files of any size."""

import gzip
import itertools

import criteo_data as criteo
import numpy as np
import pytest

COUNTS = [str(i) for i in range(13)]
CATEGORIES = [f"{i:08x}" for i in range(0xF0000000, 0xF0000000 + 26)]


def line(label="1", counts=COUNTS, categories=CATEGORIES):
    return "\t".join([label, *counts, *categories])


def replaced(fields, at, value):
    return [value if i == at else field for i, field in enumerate(fields)]


@pytest.fixture
def write(tmp_path):
    def write(text, name="data.tsv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_line_is_a_label_thirteen_counts_and_twenty_six_hashes(write):
    (batch,) = criteo.read(write(line("1") + "\n" + line("0") + "\n"), 10)

    np.testing.assert_array_equal(batch.label, np.array([1, 0], np.float32))
    np.testing.assert_allclose(batch.counts, np.tile(np.log1p(np.arange(13.0)), (2, 1)), rtol=1e-6)
    expected = np.arange(0xF0000000, 0xF0000000 + 26, dtype=np.uint64)
    np.testing.assert_array_equal(batch.categories, np.tile(expected, (2, 1)))
    dtypes = (batch.label.dtype, batch.counts.dtype, batch.categories.dtype)
    assert dtypes == (np.float32, np.float32, np.uint64)


@pytest.mark.parametrize("missing", [0, 5, 12])
def test_a_missing_or_negative_count_is_zero(write, missing):
    counts = replaced(replaced(COUNTS, missing, ""), (missing + 1) % 13, "-2")

    (batch,) = criteo.read(write(line(counts=counts)), 1)

    assert batch.counts[0, missing] == batch.counts[0, (missing + 1) % 13] == 0
    assert np.count_nonzero(batch.counts) == 12 - np.count_nonzero(
        np.isin([missing, (missing + 1) % 13], range(1, 13))
    )


@pytest.mark.parametrize("missing", [0, 7, 25])
def test_a_missing_category_is_a_key_that_no_hash_can_be(write, missing):
    categories = replaced(["ffffffff"] * 26, missing, "")

    (batch,) = criteo.read(write(line(categories=categories)), 1)

    assert batch.categories[0, missing] == criteo.MISSING
    others = np.delete(batch.categories[0], missing)
    assert (others == 0xFFFFFFFF).all()
    assert (others < criteo.MISSING).all()


def test_a_line_of_missing_values_only_keeps_its_place(write):
    text = "\n".join([line(), line("0", [""] * 13, [""] * 26), line()])

    (batch,) = criteo.read(write(text), 5)

    assert batch.label.tolist() == [1, 0, 1]
    assert not batch.counts[1].any()
    assert (batch.categories[1] == criteo.MISSING).all()


@pytest.mark.parametrize("end", ["\n", "\r\n", ""], ids=["lf", "crlf", "none"])
def test_the_end_of_a_line_is_no_part_of_its_last_field(write, end):
    (batch,) = criteo.read(write(line() + end), 1)

    assert batch.categories[0, -1] == 0xF0000000 + 25


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("size", [1, 3, 7, 8])
def test_batches_hold_every_line_once_and_in_order(write, packed, size):
    text = "".join(line(str(i % 2), replaced(COUNTS, 0, str(i))) + "\n" for i in range(7)).encode()
    # The name says nothing about the content.
    path = write(gzip.compress(text) if packed else text, "data.bin")

    batches = list(criteo.read(path, size))

    assert [len(b) for b in batches] == [size] * (7 // size) + [7 % size] * (7 % size > 0)
    counts = np.expm1(np.concatenate([b.counts[:, 0] for b in batches]))
    np.testing.assert_allclose(counts, np.arange(7), atol=1e-5)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("1\t2\t3", ["3 fields", "expected 40"]),
        ("", ["1 fields"]),
        (line() + "\tab", ["41 fields"]),
        (line()[2:], ["39 fields", "test set"]),
        (line("2"), ["label", "'2'"]),
        (line(""), ["label", "''"]),
        (line(counts=replaced(COUNTS, 3, "1.5")), ["I4", "'1.5'"]),
        (line(counts=replaced(COUNTS, 12, "x")), ["I13", "'x'"]),
        (line(counts=replaced(COUNTS, 0, "9" * 400)), ["I1", "999"]),
        (line(categories=replaced(CATEGORIES, 0, "xyz")), ["C1", "'xyz'"]),
        (line(categories=replaced(CATEGORIES, 25, "0x12")), ["C26", "'0x12'"]),
        (line(categories=replaced(CATEGORIES, 4, "123456789")), ["C5", "'123456789'"]),
        (line(categories=replaced(CATEGORIES, 4, "1_2")), ["C5"]),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 10])
def test_a_wrong_line_is_named(write, bad, says, size):
    path = write("\n".join([line(), line(), bad, line()]))

    with pytest.raises(criteo.DataError) as caught:
        list(criteo.read(path, size))

    assert all(part in str(caught.value) for part in [str(path), "line 3", *says])


def test_batches_before_a_wrong_line_come_out(write):
    path = write("\n".join([line(), line(), "1\t2"]))

    assert len(next(iter(criteo.read(path, 2)))) == 2


def test_the_file_is_read_as_far_as_it_is_used(write):
    path = write("\n".join([line()] * 5 + ["wrong"]))

    assert len(list(itertools.islice(criteo.read(path, 1), 5))) == 5


@pytest.mark.parametrize("content", [b"", gzip.compress(b"")], ids=["plain", "gz"])
def test_a_file_without_lines_is_refused(write, content):
    with pytest.raises(criteo.DataError, match="no lines"):
        list(criteo.read(write(content), 4))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(criteo.DataError, match=r"cannot read .*none\.tsv"):
        list(criteo.read(tmp_path / "none.tsv", 4))


def test_a_gzipped_file_that_is_cut_short_is_refused(write):
    rng = np.random.default_rng(0)
    text = "".join(
        line(categories=[f"{h:08x}" for h in rng.integers(1 << 32, size=26)]) + "\n"
        for _ in range(500)
    )
    path = write(gzip.compress(text.encode())[:-3000])

    with pytest.raises(criteo.DataError, match="cannot read"):
        list(criteo.read(path, 100))


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_generated_files_are_of_the_format_and_repeat(tmp_path, name):
    paths = [tmp_path / name, tmp_path / f"again.{name}"]
    for path in paths:
        criteo.generate(path, 200, seed=3)

    first, second = (list(criteo.read(path, 64)) for path in paths)

    assert [len(batch) for batch in first] == [64, 64, 64, 8]
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.categories, b.categories)
        np.testing.assert_array_equal(a.counts, b.counts)
        np.testing.assert_array_equal(a.label, b.label)
    missing = np.concatenate([b.categories for b in first]) == criteo.MISSING
    assert 0.05 < missing.mean() < 0.15


def test_a_filled_batch_brings_in_no_key_and_no_weight(write):
    (batch,) = criteo.read(write("\n".join([line("0"), line("1", categories=["ab"] * 26)])), 9)

    whole, weight = criteo.filled(batch, 5)

    assert len(whole) == 5
    np.testing.assert_array_equal(weight, np.array([1, 1, 0, 0, 0], np.float32))
    np.testing.assert_array_equal(whole.categories[:2], batch.categories)
    assert (whole.categories[2:] == batch.categories[0]).all()


@pytest.mark.parametrize("pieces", [1, 7])
def test_the_streamed_auc_counts_pairs(pieces):
    rng = np.random.default_rng(0)
    label = (rng.random(500) < 0.3).astype(np.float32)
    score = np.round(rng.random(500) * 0.7 + label * 0.3, 2).astype(np.float32)
    auc = criteo.StreamingAuc()

    for part in np.array_split(np.arange(500), pieces):
        auc.add(label[part], score[part])

    positive, negative = score[label == 1][:, None], score[label == 0][None]
    expected = np.mean((positive > negative) + 0.5 * (positive == negative))
    assert auc.value() == pytest.approx(expected, abs=1e-12)


def test_the_streamed_auc_of_one_class_is_no_number():
    auc = criteo.StreamingAuc()
    assert np.isnan(auc.value())

    auc.add(np.ones(3), np.array([0.0, 0.5, 1.0]))
    assert np.isnan(auc.value())

    auc.add(np.zeros(1), np.array([1.0]))
    assert auc.value() == pytest.approx(0.5 / 3)
