"""Settings of the server: one frozen object, read once from ``TLP_…`` variables."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tlp_service.errors import BadSettings
from tlp_service.redis_url import check_redis_url

log = logging.getLogger(__name__)


#: Name of the model that is served, trained and measured by default.
DEFAULT_MODEL = "loopnest"


def shipped_model(model: str = DEFAULT_MODEL) -> Path:
    """Return the folder of the version of a model that comes with the package.

    Raises
    ------
    BadSettings
        If the package does not contain exactly one version of the model.
    """
    shipped = Path(str(files("tlp_service") / "shipped"))
    versions = [path.parent for path in shipped.glob(f"{model}-*/manifest.json")]
    if len(versions) != 1:
        raise BadSettings(f"the package holds {len(versions)} versions of {model}; name one with TLP_MODEL")
    return versions[0]


class Settings(BaseSettings):
    """The settings of the server; each field is the environment variable ``TLP_<NAME>``."""

    # An empty variable is one that is not set: compose files write such, and an empty host would be every
    # address.
    model_config = SettingsConfigDict(
        env_prefix="TLP_", env_ignore_empty=True, frozen=True, extra="ignore", protected_namespaces=()
    )

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 chooses a free one.")
    model: Path | None = Field(
        None, description="Folder of the model version to serve, regardless of the registry."
    )
    registry: str | None = Field(
        None,
        description="Folder or fsspec URL of the model versions; default: `models` in the data folder.",
    )
    registry_poll_s: float = Field(
        2.0, gt=0, le=3600, description="Seconds between two checks of the registry."
    )
    kept_versions: int = Field(
        3,
        ge=0,
        le=100,
        description="Versions that stay loaded beside the serving one, for search rounds that began with them.",
    )
    admin_key: SecretStr | None = Field(
        None, description="Key of the registry's routes; without it they are closed."
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu",
        description="Device that runs the network; with `cuda` the server does not start without a GPU.",
    )
    threads: int = Field(
        0, ge=0, le=1024, description="Scoring threads; 0: one per CPU that the process may use."
    )
    chunk: int = Field(
        0,
        ge=0,
        le=65536,
        description="Maximum number of candidates scored at a time; "
        "0: the number that a calibration at start finds fastest.",
    )
    redis_url: SecretStr | None = Field(
        None,
        description="Redis 6.2 or later, or Valkey, for the measurement stream; without it the server starts its own.",
    )
    data_dir: Path = Field(
        Path("tlp-data"), description="Folder of the embedded stream, the record store and the registry."
    )
    records: Path | None = Field(
        None, description="Folder of the record store; default: `records` in the data folder."
    )
    recorder: bool | None = Field(
        None,
        description="Whether the server starts the recorder, which moves measurements into the record store; "
        "default: only if the server starts its own Redis.",
    )
    max_body_mib: int = Field(
        8,
        ge=1,
        description="Maximum size of a body in MiB, before and after decompression; beyond it the answer is 413.",
    )
    max_decoded_mib: int = Field(
        80,
        ge=1,
        description="Maximum estimated memory of a decoded body in MiB; beyond it the answer is 413.",
    )
    max_candidates: int = Field(
        65536,
        ge=1,
        description="Maximum number of candidates or records in a request; beyond it the answer is 413.",
    )
    max_primitives: int = Field(
        16384, ge=1, description="Maximum number of distinct primitives of one task in a request."
    )
    max_waiting: int = Field(
        262144,
        ge=1,
        description="Maximum number of candidates that wait to be scored; beyond it the answer is 429.",
    )
    max_waiting_mib: int = Field(
        80,
        ge=1,
        description="Maximum memory in MiB of all requests, each from its first byte to its answer; "
        "beyond it the answer is 429.",
    )
    measurement_id_days: int = Field(
        7,
        ge=1,
        le=3650,
        description="Days for which a measurement id is remembered; each id takes about 115 bytes of Redis memory.",
    )

    trainer: bool | None = Field(
        None,
        description="Whether the server starts the trainer, which learns from the record store; "
        "default: only if the server starts its own Redis, the registry decides what serves, and torch is installed.",
    )
    trainer_threads: int = Field(1, ge=1, le=1024, description="Threads of the trainer.")
    train_records: int = Field(
        512, ge=1, description="New records of a platform after which the trainer makes a new version."
    )
    train_s: float = Field(
        3600.0, gt=0, description="Seconds after which the trainer makes a version from fewer new records."
    )

    @field_validator("model", "registry", "admin_key", "records", "recorder", "trainer", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value  # an empty key would open the routes to everybody

    @field_validator("data_dir", "records", "model")
    @classmethod
    def _check_path(cls, value: Path | None) -> Path | None:
        try:
            str(value).encode()
        except UnicodeEncodeError:  # neither Arrow nor ONNX Runtime accepts such a path
            raise ValueError("expected a path in UTF-8") from None
        return value

    @field_validator("admin_key")
    @classmethod
    def _check_admin_key(cls, value: SecretStr | None) -> SecretStr | None:
        key = value.get_secret_value() if value is not None else ""
        if key != key.strip() or set(key) & set("\x00\r\n"):
            # HTTP strips blanks from a header, so no request could state such a key. The line end of a file
            # is usual.
            raise ValueError("expected a key without line ends, and without blanks around it")
        return value

    @field_validator("registry")
    @classmethod
    def _check_registry(cls, value: str | None) -> str | None:
        # It is printed at start and named in errors; fsspec reads credentials from its own configuration.
        if value is not None and urlsplit(value).password is not None:
            raise ValueError("a URL without a password")
        return value

    @field_validator("redis_url", mode="before")
    @classmethod
    def _check_redis_url(cls, value: Any) -> Any:
        if value in (None, ""):
            return None
        check_redis_url(value.get_secret_value() if isinstance(value, SecretStr) else str(value))
        return value

    @property
    def registry_url(self) -> str:
        """Folder or URL of the registry."""
        return self.registry or str(self.data_dir / "models")

    @property
    def records_folder(self) -> Path:
        """Folder of the record store."""
        return self.records or self.data_dir / "records"

    def make_data_dir(self) -> None:
        """Create the data folder with mode 0700, because it holds measurements.

        Log a warning if an existing folder is open to other users.
        """
        with contextlib.suppress(
            OSError
        ):  # whoever writes into it reports the error; not every command needs it
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.data_dir.stat()
            if found.st_uid == os.geteuid() and found.st_mode & 0o077:
                log.warning(
                    "TLP_DATA_DIR=%s: expected mode 700, got %o; run chmod 700 unless other users are meant to read it",
                    self.data_dir,
                    stat.S_IMODE(found.st_mode),
                )

    @property
    def max_body(self) -> int:
        """Maximum size of a body in bytes."""
        return self.max_body_mib << 20


def read_settings(**given: Any) -> Settings:
    """Return the settings: arguments take precedence over the environment, and that over defaults.

    Raises
    ------
    BadSettings
        If a value is out of range; the message names the variable.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        faults = (f"TLP_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors())
        raise BadSettings("; ".join(faults)) from None
