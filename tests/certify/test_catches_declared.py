"""What is caught in what a target says of itself."""

import pytest

from decodeloop.evaluation.lossless.declaration import check_declaration


@pytest.mark.parametrize(
    ("configuration", "passes"),
    [
        ("", True),
        ("speculative_config: {'rejection_sample_method': 'standard'}", True),
        ("speculative_config: {'rejection_sample_method': 'synthetic'}", False),
        ('{"rejection_sample_method": "fly"}', False),
        ("speculative_accept_threshold_single=1.0", True),
        ("speculative_accept_threshold_single=0.8", False),
    ],
)
def test_a_lossy_rule_that_is_told_fails(configuration, passes):
    found = check_declaration(configuration, {})
    assert found.passed is passes
    assert found.controlled
    assert check_declaration("", {"speculation": configuration}).passed is passes
