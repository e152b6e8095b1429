"""The errors that jobs get from a step."""

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError
from llama_herd.tasks.protocol.events import Failure
from llama_herd.worker.engine.device_error import is_lack_of_memory, numbers_of

NUMERIC_ERROR = Failure(
    code=ErrorCode.NUMERIC_ERROR,
    message="the logits contain NaN or infinity: a fault of the model, or of extreme penalties of the job",
)

VECTOR_ERROR = Failure(
    code=ErrorCode.NUMERIC_ERROR,
    message="the vector of a text contains NaN or infinity, which is a fault of the model",
)

NOTHING_FOLLOWS = Failure(
    code=ErrorCode.NUMERIC_ERROR,
    message="no token may follow: the vocabulary lacks what the job's schema or grammar wants, or "
    + NUMERIC_ERROR.message,
)

FIX = "Fix: lower HERD_SLOTS, HERD_PREFILL_TOKENS or HERD_KV_CACHE_TOKENS of the worker"

#: For an error that names no numbers.
MEMORY_ERROR = Failure(
    code=ErrorCode.OUT_OF_MEMORY, message=f"the device lacks memory for the job's next tokens. {FIX}"
)


def failure_of(error: Exception) -> Failure:
    """The error that a job gets for an exception in its step: of others than ours the type only.

    Their texts may quote prompts.
    """
    if isinstance(error, GenerationError):
        return Failure.from_error(error)
    if is_lack_of_memory(error):
        return _lack_of_memory(error)
    message = f"{type(error).__name__} in the model's forward pass"
    return Failure(code=ErrorCode.MODEL_ERROR, message=message)


def _lack_of_memory(error: Exception) -> Failure:
    """With the numbers if torch names them."""
    numbers = numbers_of(error)
    if numbers is None:
        return MEMORY_ERROR
    message = f"the device lacks memory for the job's next tokens: {numbers}. {FIX}"
    return MEMORY_ERROR.model_copy(update={"message": message})
