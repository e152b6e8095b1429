"""ScriptedPool: the pool of any worker, with a script in place of its model. It imports no torch."""

import gc
from typing import ClassVar

from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import Token
from llama_herd.testing.scripted_model import Ask, ScriptedModel
from llama_herd.worker import process
from llama_herd.worker.engine.interface import SequenceInfo
from llama_herd.worker.jobs.redis_check import wait_for_usable_redis
from llama_herd.worker.jobs.service import REDIS_TIMEOUT_S, Service
from llama_herd.worker.pool import EnginePool


class ScriptedPool(EnginePool):
    """Celery makes it by its name, so what answers jobs stands at the class."""

    ask: ClassVar[Ask]

    def start_service(self, worker: str) -> Service:
        gc.enable()
        settings = process.own_settings()
        redis = connect(settings.redis_url, tries=1, timeout_s=REDIS_TIMEOUT_S)
        wait_for_usable_redis(redis, settings)

        def has_recorded(sequence: SequenceInfo, num_tokens: int) -> bool:
            events = run_call(redis, Ledger(sequence.tenant).read(sequence.job_id))
            own = [one for one in events if isinstance(one, Token) and (one.choice or 0) == sequence.choice]
            return sum(len(one.ids) for one in own) >= num_tokens

        service = Service(ScriptedModel(settings, type(self).ask, has_recorded), settings, worker)
        service.start_engine()
        service.start_threads()
        return service
