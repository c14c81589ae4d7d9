"""The benchmark of caption data at a tiny size: everything is counted, and a wrong row is noticed. No timing."""

from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress

from benchmarks import caption_data
from benchmarks.caption_data import Sizes

TINY = Sizes(train=60, val=5, test=5, extra=2, batches=3, repetitions=2)


def test_everything_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(caption_data, "QUICK", TINY)
    monkeypatch.setattr(caption_data, "measured", caption_data.carry_out)  # in this process, to save time
    with Progress(disable=True) as progress:
        result = caption_data.run(True, progress)
    assert result["measurements"]["captions"] == 352
    assert [timing["name"] for timing in result["timings"]] == list(caption_data.STAGES)
    assert all(len(timing["seconds"]) == 2 for timing in result["timings"])
    assert min(result["measurements"]["most_megabytes"].values()) > 20
    assert [target["passed"] for target in result["targets"]] == [None, None]
    assert len(result["table"]) == 4


def test_a_wrong_row_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    caption_data.make_files(tmp_path, TINY)
    caption_data.prepare_files(tmp_path, TINY)
    caption_data.take_batches(tmp_path, TINY)
    rows = np.load(tmp_path / "data" / "features.npy", mmap_mode="r+")
    rows[:] = np.roll(rows, 1, 0)
    with pytest.raises(AssertionError, match="of another"):
        caption_data.take_batches(tmp_path, TINY)


@pytest.mark.prove
def test_a_stage_is_a_process_that_reports_its_error(tmp_path: Path):
    report = caption_data.measured("import only", tmp_path, TINY)
    assert set(report) == {"seconds", "megabytes"}
    with pytest.raises(AssertionError, match=r"(?s)'open' failed: .*not a prepared data set"):
        caption_data.measured("open", tmp_path, TINY)
