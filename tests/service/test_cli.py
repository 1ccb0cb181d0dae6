"""The commands with arguments that cannot work, and with a reader that leaves: one line, and nothing done."""

import os
import subprocess
import sys

import pytest

from tlp_service.cli import main
from tlp_service.records.store import RecordStore
from tlp_service.settings import shipped_model
from tlp_service.versions.registry import Registry


@pytest.fixture
def log(tmp_path, measured_lines):
    path = tmp_path / "log.json"
    path.write_text("\n".join(measured_lines) + "\n")
    return path


def run(arguments, capsys):
    """Return the exit status of a command and the last line that it wrote to stderr."""
    try:
        status = main(list(map(str, arguments)))
    except SystemExit as end:  # of argparse
        status = end.code
    return status, capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--data-dir", ""], "expected a path, got ''"),
        (["serve", "--host", "", "--port", "0"], "TLP_HOST"),
        (["evaluate", ""], "expected a path, got ''"),
        (["records", "import", "log.json", "--store", ""], "expected a path, got ''"),
        (["records", "import", "log.json", "--store", "s", "--seed", "x"], "at least 0, got 'x'"),
        (["train", "--records", "s", "--out", "o", "--share", "k80"], "expected PLATFORM=SHARE"),
        (["train", "--records", "s", "--out", "o", "--share", "k80=nan"], "expected PLATFORM=SHARE"),
        (["train", "--records", "s", "--out", "o", "--epochs", "1.5"], "at least 1, got '1.5'"),
        (["train", "--records", "s", "--out", "o", "--learning-rate", "x"], "above 0, got 'x'"),
        (["models", "prune", "--keep", "x"], "at least 0, got 'x'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_no_path_or_number_is_refused_with_what_was_expected(arguments, message, capsys):
    status, error = run(arguments, capsys)
    assert status == 2
    assert message in error


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_that_cannot_be_written_is_refused_before_the_evaluation(tmp_path, log, option, capsys):
    for path in (tmp_path, tmp_path / "missing" / "figures"):
        assert main(["evaluate", str(log), option, str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert f"{option}: expected a file that can be written, got {path}" in captured.err


@pytest.mark.parametrize("command", [["evaluate"], ["records", "import", "--store", "s"]], ids=lambda c: c[0])
def test_a_platform_that_is_no_name_is_refused(log, command, capsys):
    status, error = run([*command, log, "--platform", "x y"], capsys)
    assert status == 2
    assert "platform" in error


def test_a_record_store_beside_logs_is_refused(tmp_path, log, capsys):
    """Its folder was read as one of logs, in which there are none, so its records were left out without a word."""
    store = RecordStore.create(tmp_path / "s").folder
    for command in (
        ["evaluate", store, log],
        ["records", "import", store, "--store", tmp_path / "other"],
        ["train", "--records", log, store, "--out", tmp_path / "out"],
    ):
        status, error = run(command, capsys)
        assert status == 2
        assert f"{store}: expected tuning logs, got a record store" in error
    assert not (tmp_path / "other").exists()


def test_a_store_whose_name_is_not_utf8_is_refused_before_it_is_made(tmp_path, log, capsys):
    """Arrow ended at the first record with a traceback, and so would a recorder at each batch."""
    folder = os.fsdecode(os.fsencode(tmp_path / "st") + b"\xffore")
    status, error = run(["records", "import", log, "--store", folder], capsys)
    assert status == 2
    assert "expected a path in UTF-8" in error
    assert not os.path.lexists(folder)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["models", "show"], ["evaluate"]], ids=lambda c: c[0])
def test_a_reader_that_leaves_is_no_fault_of_what_is_read(tmp_path, log, command):
    """`tlp models show … | head` called the registry broken, and `tlp evaluate` failed."""
    if command[0] == "models":
        version = Registry(str(tmp_path / "models")).publish(shipped_model())
        arguments = [*command, version, "--registry", str(tmp_path / "models")]
    else:
        arguments = [*command, str(log)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "tlp_service", *arguments],
        check=False,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_output_that_cannot_be_written_is_no_success(tmp_path):
    store = RecordStore.create(tmp_path / "s").folder
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tlp_service", "records", "show", str(store)],
            check=False, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "tlp records: [Errno 28] No space left on device\n")
