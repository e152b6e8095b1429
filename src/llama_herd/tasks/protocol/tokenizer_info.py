"""What a model's files say of its tokenizer, in the form of Hugging Face's tokenizer_config.json."""

from pydantic import BaseModel, ConfigDict, Field


class TokenizerInfo(BaseModel):
    """Names of control tokens, what is put around a text, and the chat template."""

    model_config = ConfigDict(frozen=True)

    tokenizer_class: str = Field(description="The class that reads the vocabulary in the worker.")
    bos_token: str | None = Field(default=None, description="It begins a text; null: there is none.")
    eos_token: str | None = Field(default=None, description="It ends an output.")
    unk_token: str | None = Field(default=None, description="It stands for what has no token.")
    sep_token: str | None = Field(default=None, description="It parts texts.")
    pad_token: str | None = Field(default=None, description="It fills up rows.")
    cls_token: str | None = Field(default=None, description="It stands for a whole text.")
    mask_token: str | None = Field(default=None, description="It hides a token.")
    add_bos_token: bool = Field(description="Whether BOS is put in front of a prompt.")
    add_eos_token: bool = Field(description="Whether EOS is put behind a prompt.")
    model_max_length: int = Field(description="Most tokens that prompt and output may have at the worker.")
    chat_template: str | None = Field(
        default=None,
        description="The template of chats; null: there is none, or it has more than 256 KiB.",
    )
