"""Where results may be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.data.result_folders import refuse_foreign
from holdfast.errors import HoldfastError


def test_new_and_empty_folders_and_those_with_logs_are_taken(tmp_path: Path) -> None:
    refuse_foreign(tmp_path / "new", ())
    refuse_foreign(tmp_path, ())
    for name in ("slurm-7.out", "train.log", "notes.txt", ".hidden"):
        (tmp_path / name).write_text("")
    refuse_foreign(tmp_path, ())


def test_a_folder_of_its_own_is_taken_whatever_else_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(HoldfastError, match=r"holds other files \(mine.py\), and no result of this command; choose a"):
        refuse_foreign(tmp_path, ("run.yaml", "*/run.yaml"))
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "run.yaml").write_text("")
    refuse_foreign(tmp_path, ("run.yaml", "*/run.yaml"), data=tmp_path / "elsewhere")


def test_results_in_the_data_are_refused_unless_its_splits_have_folders(tmp_path: Path) -> None:
    data, link = tmp_path / "photos", tmp_path / "link"
    (data / "cat").mkdir(parents=True)
    link.symlink_to(data)
    for out in (data, link):
        with pytest.raises(HoldfastError, match="is the folder of the data, where results would be taken for classes"):
            refuse_foreign(out, (), data=str(data))
    (data / "export").mkdir()  # a class; a run has a folder of that name
    with pytest.raises(HoldfastError, match="is the folder of the data"):
        refuse_foreign(data, ("export", "run.yaml"), data=data)
    (data / "export").rmdir()
    for out in (data / "new", link / "runs" / "new"):
        with pytest.raises(HoldfastError, match="lies in the folder of the data"):
            refuse_foreign(out, (), data=data)
    refuse_foreign(tmp_path / "photos2", (), data=data)
    (data / "cat").rename(data / "Train")
    refuse_foreign(data / "new", (), data=data)
    with pytest.raises(HoldfastError, match="lies in the folder of the data"):
        refuse_foreign(data / "Train" / "new", (), data=data)
