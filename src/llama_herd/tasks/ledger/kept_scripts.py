"""The scripts that workers keep loaded for producers and gateways, whose roles may run but not load any."""

from llama_herd.tasks.ledger import batch_records, outbox, overview, reports, stored_files, webhook_configs
from llama_herd.tasks.ledger.ledger import CLIENT_SCRIPTS, PRODUCER_SCRIPTS

KEPT_SCRIPTS = (
    *(*PRODUCER_SCRIPTS, *CLIENT_SCRIPTS, *overview.SCRIPTS, *reports.SCRIPTS),
    *(*stored_files.SCRIPTS, *batch_records.SCRIPTS, *outbox.SCRIPTS, *webhook_configs.SCRIPTS),
)
