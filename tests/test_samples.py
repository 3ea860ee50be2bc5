"""A reader's files: what is read, and the one sentence for each way a file can be wrong."""

import numpy as np
import pytest

from shiftbound import InputError, samples

GOOD = {
    "a.csv": ("1,2\n3,4\n", [[1, 2], [3, 4]]),
    "header.csv": ("x,y\n1,2\n3,4\n", [[1, 2], [3, 4]]),
    "column.csv": ("1\n2\n", [[1], [2]]),
    "windows.csv": ("\ufeff1,2\r\n3,4\r\n", [[1, 2], [3, 4]]),
}
BAD = {
    "ragged.csv": ("1,2\n3\n", "row 2"),
    "text.csv": ("1,2\n3,cat\n", "'cat'"),
    "nan.csv": ("1,2\nnan,4\n", "NaN"),
    "inf.csv": ("1,2\ninf,4\n", "infinity"),
    "empty.csv": ("", "at least one"),
    "name.txt": ("1,2\n", ".npy or a .csv"),
}


@pytest.mark.parametrize("name", GOOD)
def test_csv_is_read(tmp_path, name):
    text, expected = GOOD[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert samples.points(tmp_path / name).tolist() == expected


@pytest.mark.parametrize("name", BAD)
def test_bad_points_get_a_sentence(tmp_path, name):
    text, said = BAD[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said) as caught:
        samples.points(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_npy_round_trip_and_one_column(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6).reshape(3, 2))
    np.save(tmp_path / "b.npy", np.arange(3.0))
    assert samples.points(tmp_path / "a.npy").shape == (3, 2)
    assert samples.points(tmp_path / "b.npy").shape == (3, 1)


def test_pickled_objects_are_never_loaded(tmp_path):
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="numbers"):
        samples.points(tmp_path / "evil.npy")


@pytest.mark.parametrize("data", [b"", b"junk", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_a_truncated_npy_is_refused(tmp_path, data):
    (tmp_path / "t.npy").write_bytes(data)
    with pytest.raises(InputError, match=r"t\.npy"):
        samples.points(tmp_path / "t.npy")


def test_complex_numbers_and_archives_are_refused(tmp_path):
    np.save(tmp_path / "c.npy", np.array([1j]))
    np.savez(tmp_path / "z.npz", a=np.ones(2))
    (tmp_path / "z.npz").rename(tmp_path / "z.npy")
    for name in ("c.npy", "z.npy"):
        with pytest.raises(InputError, match=name):
            samples.points(tmp_path / name)


def test_a_missing_file_is_named(tmp_path):
    for reader in (samples.points, lambda path: samples.dyck(path, True)):
        with pytest.raises(InputError, match="does not exist"):
            reader(tmp_path / "none.csv")


def test_weights(tmp_path):
    (tmp_path / "w.csv").write_text("0.2\n0.8\n")
    assert samples.weights(tmp_path / "w.csv", 2).tolist() == [0.2, 0.8]
    for text, rows, said in (
        ("1\n2\n", 3, "3 rows"),
        ("-1\n2\n", 2, "0 or more"),
        ("0\n0\n", 2, "not all 0"),
        ("1,1\n2,2\n", 2, "one weight"),
    ):
        (tmp_path / "w.csv").write_text(text)
        with pytest.raises(InputError, match=said):
            samples.weights(tmp_path / "w.csv", rows)


def test_words_are_read_and_measured(tmp_path):
    (tmp_path / "a.txt").write_text("((()))\n\n()()()\n")
    (tmp_path / "b.txt").write_text("()()()\n")
    x, y = (samples.load(tmp_path / name, "dyck") for name in ("a.txt", "b.txt"))
    assert samples.distances(x, y, "dyck").tolist() == [[6.0], [0.0]]


def test_dyck_path_compares_different_lengths(tmp_path):
    (tmp_path / "a.txt").write_text("()\n([]{}<>)\n")
    paths = samples.load(tmp_path / "a.txt", "dyck-path")
    assert paths.shape == (2, 128)
    # By hand: "()" is at height 1 of type ( after its first symbol, so at half of the 32 times; see words.typed_paths.
    assert samples.distances(paths, paths, "dyck-path")[0, 1] > 0
    assert samples.distances(paths, paths, "dyck-path").diagonal().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(a)\n", "'a'"),
        ("(]\n", "well nested"),
        ("(()\n", "well nested"),
        ("\n", "no words"),
        ("()\n(())\n", "lengths 2 to 4"),
    ],
)
def test_bad_words_get_a_sentence(tmp_path, text, said):
    (tmp_path / "w.txt").write_text(text)
    with pytest.raises(InputError, match=said):
        samples.load(tmp_path / "w.txt", "dyck")


def test_different_columns_are_refused():
    with pytest.raises(InputError, match="2 and 3 columns"):
        samples.distances(np.ones((2, 2)), np.ones((2, 3)), "euclidean")


def test_measure_is_the_hand_computed_value(tmp_path):
    """(0.2, 0.8) against (0.8, 0.2) on {0, 1} is 0.6, within its certificates."""
    for name, text in {"x.csv": "0\n1\n", "wa.csv": "0.2\n0.8\n", "wb.csv": "0.8\n0.2\n"}.items():
        (tmp_path / name).write_text(text)
    x, wa, wb = (tmp_path / name for name in ("x.csv", "wa.csv", "wb.csv"))
    found = samples.measure(x, x, "cityblock", (wa, wb))
    assert found["lower"] <= found["w1"] <= found["upper"] and found["w1"] == pytest.approx(0.6)
    assert set(found) == {"w1", "lower", "upper", "floor", "interval", "n", "dimension", "metric", "method"}
    assert found["floor"] is None and found["metric"] == "cityblock"


def test_measure_words_of_unequal_samples_by_a_linear_program(tmp_path):
    (tmp_path / "a.txt").write_text("((()))\n()()()\n")
    (tmp_path / "b.txt").write_text("()()()\n()()()\n((()))\n")
    found = samples.measure(tmp_path / "a.txt", tmp_path / "b.txt", "dyck")
    assert found["w1"] == pytest.approx(1.0)  # 1/6 of the mass moves by 6
    assert found["metric"] == "dyck" and found["n"] == [2, 3]
    (tmp_path / "c.txt").write_text("()()\n")
    with pytest.raises(InputError, match=r"length 6 and c\.txt of length 4"):
        samples.measure(tmp_path / "a.txt", tmp_path / "c.txt", "dyck")
    assert samples.measure(tmp_path / "a.txt", tmp_path / "c.txt", "dyck-path")["w1"] > 0
    with pytest.raises(InputError, match="euclidean, cityblock, dyck, dyck-path"):
        samples.measure(tmp_path / "a.txt", tmp_path / "c.txt", "hamming")
