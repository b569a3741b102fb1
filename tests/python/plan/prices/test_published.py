"""Prices beside training that was published."""

from __future__ import annotations

from cost.trained import training_rows, training_summary


def test_each_type_of_gpu_trains_about_as_fast_as_was_published() -> None:
    found = training_summary(list(training_rows()))
    assert found["training_A100_error"] < 0.1 and abs(found["training_A100_bias"]) < 0.05
    # Attention to long documents was slower in 2023, of when these figures are.
    assert found["training_H100_error"] < 0.15 and abs(found["training_H100_bias"]) < 0.12
