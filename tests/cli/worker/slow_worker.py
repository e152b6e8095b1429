"""`herd`, whose worker makes each step last: python -m tests.cli.worker.slow_worker worker

How long, says STANDSTILL_STEP_S.
"""

from llama_herd.cli import main
from tests.worker import standstill as standstill

main()
