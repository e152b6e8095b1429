"""`herd settings`: the settings that this process would use."""

from llama_herd.cli.terminal import show


def settings() -> None:
    """Show and explain all settings, in the form of a .env file.

    Defaults are commented out. Secrets are masked.
    """
    from llama_herd.cli.environment import read_settings, variable_of
    from llama_herd.tasks.connection.redis_url import masked
    from llama_herd.tasks.gateway.settings import GatewaySettings
    from llama_herd.worker.settings import WorkerSettings

    shown = set[str]()
    for found in (read_settings(WorkerSettings), GatewaySettings.read()):
        kind = type(found)
        secrets = [
            name for name, field in kind.model_fields.items() if not field.repr and getattr(found, name)
        ]
        hidden = dict.fromkeys(secrets, "***") | {"redis_url": masked(found.redis_url)}
        safe = found.model_copy(update=hidden)
        for name, value in safe.model_dump(exclude=shown).items():
            mark = "" if name in found.model_fields_set else "#"
            show(f"# {kind.model_fields[name].description}\n{mark}{variable_of(name)}={value}\n")
            shown.add(name)
