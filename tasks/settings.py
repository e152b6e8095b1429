"""What every process needs to know to take part: where Redis is, whose jobs, which limits."""

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

#: Name of the model that comes with the package; jobs go to its queue unless they name another.
BUNDLED_MODEL_NAME = "tales"


class Settings(BaseSettings):
    """Read from `HERD_*` variables and from a `.env` file; units stand in the names."""

    model_config = SettingsConfigDict(
        env_prefix="HERD_", env_file=".env", extra="ignore", frozen=True, populate_by_name=True
    )

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        validation_alias=AliasChoices("HERD_REDIS_URL", "CELERY_BROKER_URL", "REDIS_URL"),
        description="Redis of the queue, the ledger and the token log: one database for all three.",
    )
    tenant: str = Field(
        "default", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Whose jobs; part of every Redis key."
    )
    model_name: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,128}$",
        description=f"Model that jobs go to when they name none; empty: {BUNDLED_MODEL_NAME}, the bundled "
        "one. A worker takes its model file's stem instead.",
    )
    stream_ttl_s: int = Field(3600, ge=1, description="How long a job's events can be read after its end.")
    result_ttl_s: int = Field(86_400, ge=1, description="How long Celery keeps a job's result.")
    lease_ms: int = Field(3000, ge=500, description="A worker that is silent this long loses its jobs.")
    max_attempts: int = Field(3, ge=1, description="Claims without a new token before a job is given up.")
    max_prompt_bytes: int = Field(262_144, ge=1, le=1_048_576, description="Longest prompt, in UTF-8 bytes.")
    max_tokens_limit: int = Field(4096, ge=1, description="Highest max_tokens that a job may ask for.")

    @property
    def default_model(self) -> str:
        """The model that a job without a `model` goes to."""
        return self.model_name or BUNDLED_MODEL_NAME
