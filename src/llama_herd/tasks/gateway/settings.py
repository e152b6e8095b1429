"""Settings of the gateway."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from llama_herd.tasks.connection.redis_url import problem_with_pair
from llama_herd.tasks.gateway.origin import is_loopback, read_origins
from llama_herd.tasks.settings import MAX_TTL_S, Host, ReadableFile, Settings, check_folder
from llama_herd.tasks.storage.bucket import SCHEME


class GatewaySettings(Settings):
    """Settings of a client, and those of the gateway by which others reach it over HTTP."""

    gateway_host: Host = Field(default="127.0.0.1", description="Address to listen at.")
    gateway_open: bool = Field(
        default=False,
        description="Let everybody on this machine in without a key, as operator of HERD_TENANT. "
        "Only at a loopback address, and never behind a proxy.",
    )
    gateway_port: int = Field(default=8000, ge=0, lt=65_536, description="Port to listen at. 0: a free one.")
    gateway_cert_file: ReadableFile = Field(
        default="", description="Certificate for TLS. Its key may be in the same file. Empty: plain HTTP."
    )
    gateway_key_file: ReadableFile = Field(
        default="", validate_default=True, description="Private key of the certificate."
    )
    gateway_origins: str = Field(
        default="",
        description="Origins, such as https://a.example,http://localhost:3000, whose pages may call from a "
        "browser: each named whole, without *. Empty: none but our own.",
    )
    gateway_on_disconnect: Literal["cancel", "stay"] = Field(
        default="cancel",
        description="What happens to the job of an OpenAI request whose client goes away: cancel or stay. "
        "The header X-On-Disconnect decides it for one request.",
    )
    gateway_max_body_bytes: int = Field(
        default=4_194_304, ge=1024, le=1 << 30, description="Longest body of a request."
    )
    gateway_max_header_bytes: int = Field(
        default=32_768, ge=1024, le=1 << 20, description="Longest head of a request, its headers included."
    )
    gateway_max_streams: int = Field(
        default=2000, ge=1, le=10**6, description="Most answers that may be under way at a time."
    )
    gateway_max_tenant_streams: int = Field(
        default=1000,
        ge=1,
        le=10**6,
        description="Most answers that may be under way at a time for one tenant.",
    )
    gateway_key_rate: float = Field(
        default=100.0,
        ge=0,
        le=10**6,
        description="Most requests a second by one key, and ten times as many at once. A body counts as one "
        "more for each 64 KiB, and for each further prompt. 0: no limit.",
    )
    gateway_max_prompts: int = Field(
        default=256, ge=1, le=1000, description="Most prompts of one completion; each is a job."
    )
    gateway_idle_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="A client that takes this long to send a request whole, or to read what waits for it, is "
        "cut off.",
    )
    gateway_keep_alive_s: float = Field(
        default=75.0,
        gt=0,
        le=3600,
        description="How long a connection may rest between two requests: longer than the balancer before it "
        "keeps it, which is 60 for nginx and AWS.",
    )
    gateway_heartbeat_s: float = Field(
        default=10.0,
        ge=0.05,
        le=3600,
        description="How often a stream without events sends a comment, which keeps its connection open.",
    )
    gateway_grace_s: float = Field(
        default=10.0, ge=0, le=3600, description="How long answers may go on after SIGTERM."
    )

    gateway_files: str = Field(
        default="",
        description="Folder for the files of batches, or s3://bucket/prefix. All gateways of a Redis should "
        "share it. Empty: ~/.local/share/llama-herd/files.",
    )
    gateway_file_bytes: int = Field(
        default=209_715_200, ge=1024, le=1 << 44, description="Longest file that may be uploaded."
    )
    gateway_file_life_s: int = Field(
        default=2_592_000,
        ge=0,
        le=MAX_TTL_S,
        description="How long a file is kept that does not say so itself. 0: until it is deleted.",
    )
    gateway_batches: int = Field(
        default=8, ge=0, le=1000, description="Most batches that this gateway runs at a time."
    )
    gateway_batch_rows: int = Field(
        default=50_000, ge=1, le=10**8, description="Most rows of a batch over HTTP."
    )
    gateway_batch_lease_s: float = Field(
        default=10.0,
        ge=0.3,
        le=3600,
        description="A gateway that is silent for this long loses its batches to others.",
    )
    gateway_storage_lost_s: float = Field(
        default=86_400.0,
        ge=300,
        le=MAX_TTL_S,
        description="A storage that no gateway has reached for so long is lost: its batches end as failed.",
    )
    gateway_max_tenant_batches: int = Field(
        default=10_000,
        ge=0,
        le=10**8,
        description="Most batches of a tenant, with those that ended in the last 30 days. 0: no limit.",
    )
    gateway_max_tenant_files: int = Field(
        default=10_000, ge=0, le=10**8, description="Most files that a tenant may have. 0: no limit."
    )
    gateway_max_key_files: int = Field(
        default=0, ge=0, le=10**8, description="Most files that came in by one key. 0: no limit."
    )
    gateway_max_tenant_bytes: int = Field(
        default=107_374_182_400,
        ge=0,
        le=1 << 50,
        description="Most bytes of all files of a tenant. 0: no limit.",
    )
    gateway_max_key_bytes: int = Field(
        default=0, ge=0, le=1 << 50, description="Most bytes of all files of one key. 0: no limit."
    )
    gateway_max_tenant_rows: int = Field(
        default=2_000_000,
        ge=0,
        le=10**9,
        description="Most rows of all batches of a tenant that have not ended. 0: no limit.",
    )
    gateway_max_key_rows: int = Field(
        default=0,
        ge=0,
        le=10**9,
        description="Most rows of all batches of one key that have not ended. 0: no limit.",
    )
    gateway_webhook_private: bool = Field(
        default=False,
        description="Let webhooks go to private addresses and to this machine, also without TLS.",
    )

    gateway_request_log: Literal["all", "errors", "off"] = Field(
        default="all",
        description="Which requests are logged, as one JSON line each: all, errors, which are failures of "
        "ours, or off. No line has a prompt or a key.",
    )

    @field_validator("gateway_open")
    @classmethod
    def _check_open_host(cls, is_open: bool, others: ValidationInfo) -> bool:
        host = others.data.get("gateway_host", "")
        if is_open and host and not is_loopback(host):
            raise ValueError(
                f"cannot be combined with HERD_GATEWAY_HOST={host}, where others can call. "
                "Fix: HERD_GATEWAY_HOST=127.0.0.1, or herd keys create NAME in place of HERD_GATEWAY_OPEN"
            )
        return is_open

    @field_validator("gateway_key_file")
    @classmethod
    def _check_pair(cls, key: str, others: ValidationInfo) -> str:
        certificate = others.data.get("gateway_cert_file", "")
        if key and not certificate:
            raise ValueError(
                "is the key of a certificate, but HERD_GATEWAY_CERT_FILE names none. Fix: set both"
            )
        if certificate and (problem := problem_with_pair(certificate, key)):
            raise ValueError(f"with HERD_GATEWAY_CERT_FILE={certificate} it is {problem}")
        return key

    @field_validator("gateway_files")
    @classmethod
    def _can_be_a_folder(cls, files: str) -> str:
        return files if files.startswith(SCHEME) else check_folder(files)

    @field_validator("gateway_origins")
    @classmethod
    def _check_origins(cls, text: str) -> str:
        return ",".join(sorted(read_origins(text)))

    @property
    def origins(self) -> frozenset[str]:
        """Origins of pages that may call."""
        return read_origins(self.gateway_origins)
