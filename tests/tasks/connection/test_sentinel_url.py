"""Addresses of a Redis that Sentinels watch: for redis-py, for Celery, and to be shown."""

from pathlib import Path

import pytest

from llama_herd.errors import SettingsError
from llama_herd.tasks.app import make_app
from llama_herd.tasks.connection.redis_url import (
    SentinelUrl,
    celery_url,
    checked_url,
    complete_url,
    is_same_redis,
    masked,
)
from llama_herd.tasks.settings import Settings
from tests.tls import Identity, needs_openssl

URL = "sentinel://me:hunter%402@a:26380,b,[::1]:26381/3?master=herd&sentinel_username=watch"


def test_each_part_is_read() -> None:
    found = SentinelUrl.parse(checked_url(URL))
    assert found.hosts == (("a", 26380), ("b", 26379), ("::1", 26381))
    assert found.master == "herd"
    assert found.redis_options == {"db": 3, "username": "me", "password": "hunter@2"}
    assert found.sentinel_options == {"username": "watch"}
    assert SentinelUrl.parse(checked_url("sentinel://a")).master == "mymaster"
    assert SentinelUrl.parse(checked_url("sentinel://a?db=2")).redis_options == {"db": 2}


def test_passwords_of_redis_and_of_sentinels_come_from_settings_of_their_own() -> None:
    url = complete_url("sentinel://me@a,b/0", password="p/1", sentinel_password="s&2")
    found = SentinelUrl.parse(url)
    assert found.redis_options == {"db": 0, "username": "me", "password": "p/1"}
    assert found.sentinel_options == {"password": "s&2"}
    assert complete_url(url, password="other", sentinel_password="other") == url
    settings = Settings.read(redis_url="sentinel://me@a,b/0", redis_password="p/1", sentinel_password="s&2")
    assert settings.redis_url == url
    assert "p/1" not in repr(settings)
    assert "s&2" not in repr(settings)


def test_what_is_shown_has_hosts_and_the_name_and_no_secret() -> None:
    assert masked(f"{URL}&sentinel_password=x") == ("sentinel://me:***@a:26380,b,[::1]:26381/3?master=herd")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sentinel://", "Fix: write redis://"),
        ("sentinel://a,,b", "Fix: write redis://"),
        ("sentinel://a:port", "Fix: write redis://"),
        ("sentinel://a/0?mastre=x", "has the parameter mastre, but sentinel:// takes only db, master"),
        ("sentinel://a/0?ssl_ca_certs=x", "has the parameter ssl_ca_certs"),
        ("sentinel://a/x", "the database must be a whole number"),
    ],
)
def test_a_wrong_address_is_refused(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        checked_url(url)


def test_celery_gets_a_url_for_each_sentinel_and_the_rest_as_options() -> None:
    own = celery_url(URL)
    assert own == (
        "sentinel://me:hunter%402@a:26380/3;sentinel://me:hunter%402@b:26379/3;"
        "sentinel://me:hunter%402@[::1]:26381/3"
    )
    assert is_same_redis(own, URL)
    assert not is_same_redis(own, URL.replace("/3", "/4"))
    with make_app(Settings.read(redis_url=URL)) as app:
        for options in (app.conf.broker_transport_options, app.conf.result_backend_transport_options):
            assert options["master_name"] == "herd"
            assert options["sentinel_kwargs"]["username"] == "watch"
        assert app.conf.broker_use_ssl is None
        assert app.backend.connparams["password"] == "hunter@2"


@needs_openssl
def test_tls_goes_to_sentinels_and_redis_alike(tmp_path: Path) -> None:
    ca = str(Identity.make(tmp_path, "127.0.0.1").file)
    url = complete_url("sentinels://a,b/0", ca_file=ca)
    tls = {"ssl_cert_reqs": "required", "ssl_ca_certs": ca}
    assert SentinelUrl.parse(url).redis_options == {"db": 0, "ssl": True, **tls}
    assert SentinelUrl.parse(url).sentinel_options == {"ssl": True, **tls}
    with make_app(Settings.read(redis_url=url)) as app:
        assert app.conf.broker_use_ssl == app.conf.redis_backend_use_ssl == tls
    with pytest.raises(SettingsError, match="sentinels:// instead of sentinel://"):
        complete_url("sentinel://a", ca_file=ca)
