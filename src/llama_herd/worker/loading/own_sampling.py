"""The sampling that a model's files recommend, as far as a job may ask for it."""

import structlog
from pydantic import ValidationError

from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.loading.servable_texts import TextFile

log = structlog.get_logger(__name__)


def own_sampling(file: TextFile) -> dict[str, float]:
    """The fields of a job's sampling that the files have. A value that no job may have is left out."""
    found = dict[str, float]()
    for name, value in file.sampling.items():
        try:
            SamplingParams.model_validate({name: value})
        except ValidationError:
            log.warning("a recommended sampling is not used", field=name, reason="no job may have this value")
        else:
            found[name] = value
    return found
