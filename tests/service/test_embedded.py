"""The embedded server comes back when its socket is removed, and its folders are private."""

import os
import shutil
import stat
from pathlib import Path

import pytest
import redis
from redis_servers import answers
from serving import until

from tlp_service.errors import BadSettings
from tlp_service.measurements.embedded import embedded_redis
from tlp_service.settings import read_settings


@pytest.mark.slow
@pytest.mark.parametrize("taken", ["the socket", "its folder"])
def test_a_socket_that_is_tidied_away_comes_back_with_all_that_was_kept(tmp_path, taken):
    """Cleaners of the temporary folder remove it: systemd-tmpfiles, tmpreaper, rm -rf /tmp/*.

    Then no client could connect, and the server could not restart.
    """
    with embedded_redis(tmp_path / "data") as url:
        socket = Path(url.removeprefix("unix://"))
        with redis.Redis.from_url(url) as client:
            client.set("kept", "1")
            before = client.info("server")["process_id"]
            client.connection_pool.disconnect()
            if taken == "the socket":
                socket.unlink()
            else:
                shutil.rmtree(socket.parent)
            until(lambda: answers(client))
            assert client.get("kept") == b"1"
            assert client.info("server")["process_id"] != before
            assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert not socket.parent.exists()


def test_a_socket_folder_of_somebody_else_is_not_used(tmp_path):
    with embedded_redis(tmp_path / "data") as url:
        folder = Path(url.removeprefix("unix://")).parent
        shutil.rmtree(folder)
        folder.symlink_to(tmp_path)
        with redis.Redis.from_url(url) as client:
            # The server ends since its socket is gone, and does not restart in a folder of another user.
            until(lambda: not (tmp_path / "valkey.sock").exists() and not answers(client))
            folder.unlink()
            until(lambda: answers(client))


def test_a_temporary_folder_that_is_missing_is_told_by_its_setting(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(BadSettings, match="TMPDIR: "), embedded_redis(tmp_path / "data"):
        pass


def mode_of(folder):
    return stat.S_IMODE(folder.stat().st_mode)


def test_the_data_folder_is_made_for_its_user_alone(tmp_path, caplog):
    umask = os.umask(0o022)
    try:
        with embedded_redis(tmp_path / "a"):
            assert mode_of(tmp_path / "a") == 0o700
        read_settings(data_dir=tmp_path / "b").make_data_dir()
    finally:
        os.umask(umask)
    assert mode_of(tmp_path / "b") == 0o700
    assert "TLP_DATA_DIR" not in caplog.text


def test_a_data_folder_that_is_open_to_others_is_pointed_out_and_left(tmp_path, caplog):
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    read_settings(data_dir=folder).make_data_dir()
    assert f"TLP_DATA_DIR={folder}: expected mode 700, got 755" in caplog.text
    assert mode_of(folder) == 0o755
