"""Celery's worker in this process, with our pool."""

import os
import signal
import warnings


def run_celery_worker(name: str | None) -> int:
    """Run Celery's worker to its end, and return its exit code; `name`: without the host, None: any.

    It shows no banner: the pool tells what one wants to know.
    """
    from celery.bin.celery import celery
    from celery.exceptions import SecurityWarning
    from click.exceptions import Abort

    # Celery warns about root because of pickles, which are refused here. In containers root is common.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    node = f"{name or f'herd-{os.getpid()}'}@%h"
    command = ["--app", "llama_herd.tasks.app", "--quiet", "worker", "--without-gossip", "--without-mingle"]
    try:
        code = celery.main([*command, "--loglevel", "INFO", "--hostname", node], standalone_mode=False)
    except Abort:  # Ctrl-C before Celery handles it
        return 128 + signal.SIGINT
    return int(code or 0)
