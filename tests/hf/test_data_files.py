"""Tables of prompts: what is read, and what is said of files that are not as they should be."""

import json
from pathlib import Path
from typing import Any

import pytest

from corollout.errors import InputError
from corollout.hf.data_files import read_prompts, read_table
from corollout.hf.settings import PromptSettings

ROWS = [{"prompt": 'a, "b"\nc', "answer": "é"}, {"prompt": "d", "answer": "2"}]
CHAT = [{"role": "user", "content": "a"}]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        import csv

        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        text = json.dumps(rows) if path.suffix == ".json" else "\n".join(lines)
        path.write_text(text, "utf-8")
    return str(path)


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
def test_a_file_of_any_kind_has_the_same_rows(tmp_path: Path, ending: str):
    assert read_table(write(tmp_path / f"prompts.{ending}", ROWS)) == ROWS
    if ending != "csv":
        assert read_table(write(tmp_path / f"chat.{ending}", [{"prompt": CHAT}])) == [{"prompt": CHAT}]


def test_lines_of_text_are_prompts_and_json_may_be_lines(tmp_path: Path):
    (tmp_path / "prompts.txt").write_text("one, two\r\n\nthree\u2028four\n")
    assert read_table(str(tmp_path / "prompts.txt")) == [{"prompt": "one, two"}, {"prompt": "three\u2028four"}]
    (tmp_path / "lines.json").write_text('{"prompt": "a"}\n\n{"prompt": "b", "more": 1}\n')
    assert read_table(str(tmp_path / "lines.json")) == [{"prompt": "a", "more": None}, {"prompt": "b", "more": 1}]


def test_another_column_can_be_the_prompt(tmp_path: Path):
    source = write(tmp_path / "q.jsonl", [{"question": "why", "prompt": "not this"}, {"question": "how"}])
    rows = read_prompts(PromptSettings(dataset=source, prompt_column="question"))
    assert [rows[number]["prompt"] for number in range(len(rows))] == ["why", "how"]
    assert rows[1]["question"] == "how"


def test_a_folder_of_the_library_is_read(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(ROWS)
    table.save_to_disk(tmp_path / "one")
    assert list(read_prompts(PromptSettings(dataset=str(tmp_path / "one")))) == ROWS
    datasets.DatasetDict(test=table.select([1]), train=table).save_to_disk(tmp_path / "several")
    assert len(read_table(str(tmp_path / "several"))) == 2
    datasets.DatasetDict(test=table, dev=table).save_to_disk(tmp_path / "others")
    with pytest.raises(InputError, match="has no split 'train': choose one of"):
        read_table(str(tmp_path / "others"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt":\n', r"a\.jsonl, line 2 is not valid JSON"),
        ("a.jsonl", b'{"prompt": "a"}\n\n["a"]\n', r"a\.jsonl, line 3 is not a JSON object"),
        ("a.jsonl", b'{"prompt": "\\ud800"}\n', "line 1 is not valid JSON"),
        ("a.jsonl", b'{"prompt": "\xff"}\n', "it is not UTF-8 text"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not valid JSON"),
        ("a.jsonl", b"", "is empty: it has no rows"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n', "has no column 'prompt': it has text, label"),
        ("a.json", b'[{"prompt": "a"}, 3]', "entry 1 is not a JSON object, but 3"),
        ("a.json", b'[{"prompt": "a"}', "is not valid JSON"),
        ("a.csv", b"prompt,answer\na,b\nc\n", r"a\.csv, line 3 has 1 fields, but the header has 2"),
        ("a.csv", b'prompt\n"a"b\n', "line 2 is not valid CSV"),
        ("a.csv", b'prompt\n"a\n', "is not valid CSV"),
        ("a.csv", b"prompt,prompt\n", "two columns have the same name"),
        ("a.csv", b"prompt\n", "is empty: it has no rows"),
        ("a.parquet", b"PAR1 and nothing else", "is not a valid parquet file"),
        ("a.parquet", b"", "is not a valid parquet file"),
        ("a.txt", b"\n\n", "is empty"),
        ("a.xlsx", b"x", r"unknown ending: files of prompts end with \.jsonl, \.json"),
        ("folder/a.jsonl", b"{}", "is not a data set of datasets, as save_to_disk writes it"),
    ],
)
def test_what_is_wrong_with_a_file_is_a_sentence(tmp_path: Path, name: str, content: bytes, message: str):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    source = path.parent if name.startswith("folder") else path
    with pytest.raises(InputError, match=message) as error:
        read_prompts(PromptSettings(dataset=str(source)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", ["prompts.jsonl", "./prompts", "/no/such/file", "a/b/c", "a b", "x" * 300 + "/y/z"])
def test_a_file_that_is_missing_is_not_looked_for_at_the_hub(source: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("corollout.hf.data_files._at_hub", lambda *_: pytest.fail("looked for at the hub"))
    with pytest.raises(InputError, match=r"there is no file|cannot use the data set"):
        read_table(source)


@pytest.mark.filterwarnings("ignore")
def test_a_name_at_the_hub_without_a_network_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def load(*given: Any, **options: Any) -> Any:
        asked.append((given, options))
        raise ConnectionError("Couldn't reach 'some/data' on the Hub (LocalEntryNotFoundError)\nand more")

    monkeypatch.setattr(datasets, "load_dataset", load)
    message = "no file some/data, and the data set of that name cannot be loaded from the hub: Couldn't reach"
    with pytest.raises(InputError, match=message):
        read_table("some/data:test[:5]", "main")
    assert asked == [(("some/data", "main"), {"split": "test[:5]"})]


def test_the_size_of_a_file_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COROLLOUT_MAX_TABLE_BYTES", "20")
    small = write(tmp_path / "small.jsonl", [{"prompt": "a"}])
    assert read_table(small) == [{"prompt": "a"}]
    with pytest.raises(InputError, match="COROLLOUT_MAX_TABLE_BYTES"):
        read_table(write(tmp_path / "large.jsonl", ROWS))
