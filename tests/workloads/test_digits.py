"""The digits data set, compared with scikit-learn's, and its two parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from wattlaw.common.errors import NotAvailable
from wattlaw.workloads.digits import cnn
from wattlaw.workloads.digits.cnn import images_and_labels, stratified


def test_images_and_labels_are_those_that_scikit_learn_reads():
    found, labels = images_and_labels()
    expected, expected_labels = load_digits(return_X_y=True)
    assert found.shape == (1797, 1, 8, 8)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.reshape(-1, 64) * 16, expected)
    np.testing.assert_array_equal(labels, expected_labels)


def test_a_missing_data_file_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cnn, "_FILE", cnn._FILE.with_name("nowhere.gz"))
    with pytest.raises(NotAvailable, match="pip install"):
        images_and_labels()


@given(
    st.lists(st.integers(0, 4), min_size=10, max_size=200),
    st.floats(0.05, 0.95),
    st.integers(0, 2**32 - 1),
)
def test_parts_are_disjoint_complete_and_stratified(labels, share, seed):
    size = max(1, int(share * len(labels)))
    given_ = np.array(labels)
    train, test = stratified(given_, size, seed)
    assert len(test) == size
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in set(labels):
        expected = labels.count(label) * size / len(labels)
        assert abs((given_[test] == label).sum() - expected) < 1 + 1e-9
    again, _ = stratified(given_, size, seed)
    np.testing.assert_array_equal(train, again)
