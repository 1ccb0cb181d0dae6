"""Settings that cannot work are refused before anything listens; an empty variable is one that is not set."""

import pytest

from tlp_service.errors import BadSettings
from tlp_service.processes.server import serve
from tlp_service.settings import Settings, read_settings


@pytest.fixture(autouse=True)
def _no_other_settings(monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.delenv(f"TLP_{name.upper()}", raising=False)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_an_empty_variable_is_as_one_that_is_not_set(monkeypatch, name):
    """An empty host was every address of the machine, an empty data folder the working one."""
    monkeypatch.setenv(f"TLP_{name.upper()}", "")
    assert read_settings() == Settings.model_construct()


def test_an_empty_host_argument_is_refused():
    with pytest.raises(BadSettings, match="TLP_HOST"):
        read_settings(host="")


@pytest.mark.parametrize("key", [" ", "key\n", " key", "key\t", "two\nlines", "k\x00y"])
def test_an_admin_key_that_no_header_can_hold_is_refused(key):
    """HTTP strips blanks, so the right key was answered with 401."""
    with pytest.raises(BadSettings, match=r"^TLP_ADMIN_KEY: .*expected a key without line ends"):
        read_settings(admin_key=key)


@pytest.mark.parametrize("key", ["k", "two words", "Zm9v+/=", "schl\u00fcssel"])
def test_other_admin_keys_are_taken(key):
    assert read_settings(admin_key=key).admin_key.get_secret_value() == key


@pytest.mark.parametrize("name", ["data_dir", "records", "model"])
def test_a_path_that_is_not_utf8_is_refused(monkeypatch, name):
    """The server printed a traceback of its settings, and a recorder would fail at each record."""
    monkeypatch.setenv(f"TLP_{name.upper()}", "st\udcffore")
    with pytest.raises(BadSettings, match=rf"^TLP_{name.upper()}: .*UTF-8"):
        read_settings()


def test_a_record_store_folder_that_holds_something_else_is_refused(tmp_path):
    """Recorder and trainer ended and were started again for ever, beside a server that was ready."""
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BadSettings, match=r"TLP_RECORDS: .*neither a record store nor empty"):
        serve(read_settings(records=tmp_path, data_dir=tmp_path / "data", recorder=True))
