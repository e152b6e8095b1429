"""What users of each role may do to their own tenant and to another: command by command, on a real server."""

import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.retry import Retry

from llama_herd.errors import BadInput, NotPermitted, RedisUnavailable
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.keys import Keys, joint_tenant
from llama_herd.tasks.ledger.redis_call import RedisCall, keep_loaded, run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.ledger.script import all_scripts, kept_scripts
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.tasks.security.rights import Dialect
from tests.guarded_redis import GuardedRedis, newest_dialect, write_users

pytestmark = pytest.mark.redis

OWN, OTHER, THIRD = "acme", "acme2", "globex"
P, S, W, O, G, K = Role  # noqa: E741


#: Who may run a command on a tenant's objects: {t} is the tenant, {j} a job's keys but for their last part.
COMMANDS: dict[str, set[Role]] = {
    # the record of a job, with its prompt
    "HMGET {j}:job body": {P, W, O, G},
    "HGETALL {j}:job": {W, O, G},
    "HSET {j}:job state done": {P, W, O, G},
    "HSCAN {j}:job 0": {O, G},
    "DEL {j}:job": {W, O, G},
    "EXISTS {j}:job": {W, O},
    "DUMP {j}:job": set(),
    "OBJECT ENCODING {j}:job": set(),
    "MEMORY USAGE {j}:job": {P, W, O, G},
    "COPY {j}:job {j}:copy": set(),
    "RENAME {j}:job {j}:new": set(),
    "MIGRATE 127.0.0.1 1 {j}:job 0 1": set(),
    "SORT herd:{t}:pending BY *->body": set(),
    "WATCH {j}:job": {W},
    # its events
    "XRANGE {j}:events - +": {S, W, O, G},
    "XREAD STREAMS {j}:events 0": {S, O, G},
    "XREVRANGE {j}:events + -": {W, O, G},
    "XADD {j}:events 9-0 e x": {P, W, O, G},
    "XINFO STREAM {j}:events": set(),
    "XGROUP CREATE {j}:events g $": set(),
    # channels
    "SUBSCRIBE herd:{t}:tokens:1": {P, S, W, O, G},
    "PUBLISH herd:{t}:tokens:1 x": {P, W, O, G},
    "SUBSCRIBE herd:{t}:ctl:0f3c": {P, W, O, G},
    "PUBLISH herd:{t}:ctl:0f3c x": {P, W, O, G},
    "PSUBSCRIBE herd:{t}:*": set(),
    "PUBLISH /0.herd:{t}:celeryev/worker.online x": {W, O},
    "SUBSCRIBE /0.herd:{t}:control.pidbox": {P, W, O},
    "PUBLISH /0.herd:{t}:control.pidbox x": {P, W, O},
    # what is the tenant's
    "ZADD herd:{t}:pending 1 x": {P, W, O, G},
    "ZRANGE herd:{t}:pending 0 -1": {W, O, G},
    "ZADD herd:{t}:pending:{q} 1 x": {P, W, O, G},
    "ZREM herd:{t}:pending:deadlines x": {P, W, O, G},
    "ZRANGE herd:{t}:leases 0 -1": {W, O, G},
    "ZCARD herd:{t}:leases": {W, O, G},
    "HGETALL herd:{t}:worker:w": {W, O, G},
    "ZADD herd:{t}:server:1 1 x": {W, O},
    "XREVRANGE herd:{t}:dead + -": {W, O, G},
    "XADD herd:{t}:dead * raw x": {W, O, G},
    "HGET herd:{t}:unacked tag": {W, O, G},
    "ZRANGEBYSCORE herd:{t}:unacked_index 0 1": {W, O, G},
    "ZREVRANGEBYSCORE herd:{t}:unacked_index 1 0": set(),
    # what is paused
    "ZSCORE herd:{t}:drained x": {W, O, G},
    "ZRANGEBYSCORE herd:{t}:paused 0 1": {P, W, O, G},
    # its webhooks
    "HMGET herd:{t}:webhook jobs": {P, W, O, G},
    "ZADD herd:{t}:outbox 1 x": {P, W, O, G},
    "HSET herd:{t}:outbox:entries x y": {P, W, O, G},
    "ZREM herd:{t}:outbox:dead x": {P, W, O, G},
    "ZRANGE herd:{t}:outbox 0 -1": {W, O, G},
    "HGET herd:{t}:outbox:entries x": {W, O, G},
    "SET herd:{t}:unacked_mutex x": set(),
    # files and batches of the gateway
    "HGETALL {j}:file": {W, O, G},
    "HSET {j}:batch state x": {W, O, G},
    "ZRANGE herd:{t}:stored_files 0 -1": {W, O, G},
    "ZADD herd:{t}:stored_batches 1 x": {W, O, G},
    "HINCRBY herd:{t}:quota rows 1": {W, O, G},
    # its queue
    "LPUSH {q} x": {P, W, O, G},
    "RPOP {q}": {W},
    "RPOP {q}\x06\x169": {W},
    "RPOP {q}\x06\x16low": {W},
    "EXISTS {q} {q}\x06\x16urgent {q}\x06\x169": {W, O},
    "EXISTS {q} {q}\x06\x16other": set(),
    "LPUSH {q}\x06\x16urgent x": {P, W, O, G},
    "LPUSH {q}\x06\x16other x": set(),
    "LRANGE {q} 0 -1": {W, O, G},
    "LREM {q} 1 x": {O, G},
    "LLEN {q}": {P, W, O, G},
    "LLEN {q}2": set(),
    "TYPE {q}": {P, W, O, G},
    "TYPE {q}2": set(),
    "SADD _kombu.binding.{q} x": {P, W},
    "SSCAN _kombu.binding.{q} 0": {W, O, G},
    # results
    "GET {r}celery-task-meta-1": {S, W, O},
    "SETEX {r}celery-task-meta-1 9 x": {W},
    "SUBSCRIBE {r}celery-task-meta-1": {P, S, W, O},
    # scripts
    "EVALSHA {sha} 1 {j}:job": {P, W, O, G},
}  # fmt: skip

#: What shows names, or reaches beyond a tenant; the last word on each is the same for all.
FORBIDDEN = (
    """
KEYS *|SCAN 0|RANDOMKEY|DBSIZE|PUBSUB CHANNELS|PUBSUB NUMSUB herd:acme:ctl:0f3c|PUBSUB NUMPAT|PSUBSCRIBE *
CLIENT LIST|CLIENT KILL ID 1|CLIENT PAUSE 1|CLIENT INFO|CLIENT TRACKING ON BCAST|MONITOR|CONFIG GET *
CONFIG SET maxmemory 0|ACL LIST|ACL WHOAMI|ACL SETUSER x|DEBUG SLEEP 0|FLUSHALL|FLUSHDB|SCRIPT FLUSH
SCRIPT KILL|EVAL return 0|SWAPDB 0 1|LATENCY LATEST|SLOWLOG GET|MODULE LIST|REPLICAOF NO ONE|SHUTDOWN|SAVE
BGSAVE|BGREWRITEAOF|LASTSAVE|ROLE|SYNC|CLUSTER INFO|COMMAND|MEMORY STATS|FAILOVER
""".strip()
    .replace("\n", "|")
    .split("|")
)


#: Commands on a key that holds something else. Rules of Redis 6.2 cannot keep them from who may run them on
#: others.
ON_ANOTHER_KIND: dict[str, set[Role]] = {
    "SADD {q} x": {P, W},
    "SADD {q}\x06\x16urgent x": {P, W},
    "HSET {q} x x": {P, W, O, G},
    "XADD {q}\x06\x16low * x x": {P, W, O, G},
    "ZADD {q} 1 x": {P, W, O, G},
    "SET {q} x": {W},
    "DEL {q}": {W, O, G},
    "EXPIRE {q} 0": {P, W, O, G},
    "TYPE {j}:job": {P, W, O, G},
    "LPUSH _kombu.binding.{q} x": {P, W, O, G},
    "LPUSH {j}:job x": {P, W, O, G},
    "SADD {j}:job x": {P, W},
    "LPUSH {j}:events x": {P, W, O, G},
    "SADD herd:{t}:pending x": {P, W},
    "LPUSH herd:{t}:leases x": {P, W, O, G},
    "XADD herd:{t}:waiting * x x": {P, W, O, G},
    "SET herd:{t}:unacked x": {W},
    "SADD {r}celery-task-meta-1 x": {W},
}  # fmt: skip

#: Who may pause and drain. Rules of Redis 6.2 cannot keep those from it who read what is paused.
PAUSING: dict[str, set[Role]] = {
    "ZADD herd:{t}:paused 1 x": {P, W},
    "ZREM herd:{t}:paused x": {P, W},
    "ZADD herd:{t}:drained 1 x": {W},
    "DEL herd:{t}:paused": {W},
}

#: What none of our calls needs, whatever it holds.
NO_KEYS_OF_OURS = ("SET herd:{t}:mine x", "HSET herd:{t}:{1}:mine x x", "SADD _kombu.binding.other x")


@pytest.fixture(scope="module", params=list(Dialect))
def dialect(request: pytest.FixtureRequest) -> Dialect:
    if request.param > newest_dialect():
        pytest.skip("needs a redis-server 7 or newer on PATH")
    return Dialect(request.param)


@pytest.fixture(scope="module")
def server(dialect: Dialect, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    folder = tmp_path_factory.mktemp("acl")
    for tenant in (OWN, OTHER):
        acl = Acl(tenant, [f"herd.{tenant}:m"])
        write_users(folder, {f"{tenant}-{role}": acl.rights(role) for role in Role}, dialect)
    rights = Acl(OWN, [f"herd.{OWN}:m"]).rights(P)
    fewer = replace(rights, commands=rights.commands - {"TYPE"})  # as somebody may write them by hand
    write_users(folder, {f"{OWN}-handmade-producer": fewer}, dialect)
    both = [Acl(tenant, [f"herd.{tenant}:m"]) for tenant in (OWN, THIRD)]
    write_users(folder, {f"both-{role}": Acl.rights_in(both, role) for role in Role}, dialect)
    with GuardedRedis(folder) as server:
        yield server


@pytest.fixture(scope="module")
def users(server: GuardedRedis) -> dict[Role, Redis]:
    return {role: Redis.from_url(server.url_of(f"{OWN}-{role}"), protocol=2) for role in Role}


def may(user: Redis, command: str) -> bool:
    """Whether Redis lets a user run a command; what else is wrong with it does not count."""
    connection: Any = user.connection_pool.get_connection()
    try:
        connection.send_command(*command.split(" "))
        connection.read_response()
    except NoPermissionError:
        return False
    except ResponseError as error:
        return "command not allowed" not in str(
            error
        )  # Redis 7 lets nobody run DEBUG, whatever the rules say
    finally:
        connection.disconnect()
        user.connection_pool.release(connection)
    return True


def filled_in(command: str, tenant: str) -> str:
    job, result = f"herd:{tenant}:{{1}}", f"herd:{tenant}:"
    return command.format(t=tenant, j=job, q=f"herd.{tenant}:m", r=result, sha="0" * 40)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_role_may_do_its_part_in_its_own_tenant_and_nothing_in_another(
    command: str, users: dict[Role, Redis]
) -> None:
    allowed = {role for role, user in users.items() if may(user, filled_in(command, OWN))}
    assert allowed == COMMANDS[command]
    assert not [role for role, user in users.items() if may(user, filled_in(command, OTHER))]


@pytest.mark.long
@pytest.mark.parametrize("command", ON_ANOTHER_KIND)
def test_nobody_puts_into_a_key_what_it_does_not_hold_from_redis_7_on(
    command: str, dialect: Dialect, users: dict[Role, Redis]
) -> None:
    allowed = {role for role, user in users.items() if may(user, filled_in(command, OWN))}
    assert allowed == (set() if dialect is Dialect.SELECTORS else ON_ANOTHER_KIND[command])
    assert not [role for role, user in users.items() if may(user, filled_in(command, OTHER))]


@pytest.mark.parametrize("command", PAUSING)
def test_only_operators_and_gateways_pause(command: str, dialect: Dialect, users: dict[Role, Redis]) -> None:
    allowed = {role for role, user in users.items() if may(user, filled_in(command, OWN))}
    wide = PAUSING[command] if dialect is Dialect.FLAT else set()
    narrow = set() if command.startswith("DEL") and dialect is Dialect.SELECTORS else {O, G}
    assert allowed == wide | narrow
    assert not [role for role, user in users.items() if may(user, filled_in(command, OTHER))]


@pytest.mark.parametrize("command", NO_KEYS_OF_OURS)
def test_nobody_makes_keys_that_nobody_reads(command: str, users: dict[Role, Redis]) -> None:
    command = command.replace("{1}", "{{1}}")
    assert not [role for role, user in users.items() if may(user, filled_in(command, OWN))]


def test_each_command_that_a_role_may_run_is_in_its_rules_in_either_dialect() -> None:
    """One that no table names would be left out of the selectors, and fail on a Redis 7 alone."""
    scripts = {command for one in all_scripts() for command in one.commands}
    for role in Role:
        rights = Acl(OWN, ["herd.acme:m"]).rights(role)
        flat, narrow = (rights.user("u", "p", dialect) for dialect in Dialect)
        assert set(re.findall(r"\+[a-z|]+", narrow)) == set(re.findall(r"\+[a-z|]+", flat))
        assert set(re.findall(r"~[^ )]+", narrow)) <= set(re.findall(r"~[^ )]+", flat))
        assert role not in (W, O) or scripts - rights.commands == ({"RPOP", "SET"} if role is O else set())


def test_on_redis_7_a_command_comes_with_the_keys_of_its_kind() -> None:
    line = Acl(OWN, ["herd.acme:m"]).rights(P).user("u", "p", Dialect.SELECTORS)
    head, *selectors = (part.rstrip(") ") for part in line.split("("))
    assert "~" not in head
    (sets,) = (one for one in selectors if "+sadd" in one)
    bindings = [f"~_kombu.binding{kind}.herd.acme:m" for kind in ("", "_permanent")]
    assert sets.split() == [*bindings, "+sadd", "+smembers"]


@pytest.fixture(scope="module")
def users_of_both(server: GuardedRedis) -> dict[Role, Redis]:
    return {role: Redis.from_url(server.url_of(f"both-{role}"), protocol=2) for role in Role}


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_a_role_in_two_tenants_is_the_same_in_both_and_nothing_in_another(
    command: str, users_of_both: dict[Role, Redis]
) -> None:
    for tenant in (OWN, THIRD):
        allowed = {role for role, user in users_of_both.items() if may(user, filled_in(command, tenant))}
        assert allowed == COMMANDS[command]
    assert not [role for role, user in users_of_both.items() if may(user, filled_in(command, OTHER))]


def test_what_a_worker_of_two_tenants_holds_is_out_of_reach_of_a_worker_of_one(
    users: dict[Role, Redis], users_of_both: dict[Role, Redis]
) -> None:
    command = f"HGET {Keys(joint_tenant([OWN, THIRD])).unacked_key} tag"
    assert may(users_of_both[W], command)
    assert not [role for role, user in users.items() if may(user, command)]


@pytest.mark.long
@pytest.mark.parametrize("command", FORBIDDEN)
def test_nobody_lists_names_or_reaches_the_server(command: str, users: dict[Role, Redis]) -> None:
    assert not [role for role, user in users.items() if may(user, command)]


#: Who may run commands on keys of the gateway's callers and on webhooks. A Redis 6.2 lets a gateway run all.
ON_KEPT: dict[str, set[Role]] = {
    "HGET herd:keys x": {G},
    "HLEN herd:keys": {G},
    "HGETALL herd:keys": {G, K},
    "HSETNX herd:keys x y": {K},
    "HDEL herd:keys x": {K},
    "HSET herd:keys x y": set(),
    "DEL herd:keys": set(),
    "EXPIRE herd:keys 1": set(),
    "HGET herd:webhooks x": {G},
    "HGETALL herd:webhooks": {G},
    "HSET herd:webhooks x y": set(),
    "HSETNX herd:webhooks x y": set(),
    "HDEL herd:webhooks x": set(),
    "DEL herd:webhooks": set(),
}


@pytest.mark.parametrize("command", ON_KEPT)
def test_a_gateway_looks_up_keys_and_webhooks_and_a_gatekeeper_makes_keys(
    command: str, dialect: Dialect, users: dict[Role, Redis]
) -> None:
    allowed = {role for role, user in users.items() if may(user, command)}
    assert allowed == ON_KEPT[command] | ({G} if dialect is Dialect.FLAT else set())


def test_who_is_gateway_and_gatekeeper_changes_keys_and_no_webhooks() -> None:
    acl = Acl(OWN, ["herd.acme:m"])
    line = (acl.rights(G) + acl.rights(K)).user("u", "p", Dialect.SELECTORS)
    kept = [part.rstrip(") ") for part in line.split("(") if re.search(r"~herd:(keys|webhooks) ", part)]
    assert "~herd:keys +hdel +hsetnx" in kept
    assert [one for one in kept if "~herd:webhooks" in one and re.search("hset|hdel", one)] == []


@pytest.mark.parametrize("name", ["files", "batches"])
def test_only_a_gateway_sees_to_what_is_due_in_a_storage(name: str, users: dict[Role, Redis]) -> None:
    for command in (f"ZADD herd:{name}@disk 1 x", f"ZRANGEBYSCORE herd:{name}@disk 0 1"):
        assert {role for role, user in users.items() if may(user, command)} == {G}


def test_only_a_gateway_may_be_the_one_that_sends_webhooks(users: dict[Role, Redis]) -> None:
    assert {role for role, user in users.items() if may(user, "HSET herd:webhooks@sender holder x")} == {G}


def test_workers_and_operators_see_whether_redis_evicts(users: dict[Role, Redis]) -> None:
    assert {role for role, user in users.items() if may(user, "INFO")} == {W, O}


def test_who_submits_may_wait_for_replicas(users: dict[Role, Redis]) -> None:
    assert {role for role, user in users.items() if may(user, "WAIT 0 1")} == {P, O, G}


def test_only_who_may_load_scripts_does(users: dict[Role, Redis]) -> None:
    assert {role for role, user in users.items() if may(user, "SCRIPT LOAD return")} == {W, O}


def test_a_script_that_builds_keys_of_its_own_stays_in_the_tenant(
    server: GuardedRedis, users: dict[Role, Redis]
) -> None:
    with Redis.from_url(server.url) as root:
        root.hset(f"herd:{OTHER}:worker:w", "name", "w")
        expires_ms = 1000 * root.time()[0] + 9_000
    users[W].zadd(f"herd:{OWN}:workers", {"w": expires_ms})
    call = Reports(OWN).workers()
    assert run_call(users[W], call) == []
    hostile = RedisCall(call.what, call.keys, (f"herd:{OTHER}:worker:", "", 9), call.parse)
    with pytest.raises(ResponseError, match=r"access (at least one of the keys|one of the keys|a key)"):
        run_call(users[W], hostile)


def test_a_producer_that_lacks_our_scripts_is_told_who_loads_them(server: GuardedRedis) -> None:
    with Redis.from_url(server.url) as root, Client(server.url_of(f"{OWN}-producer"), tenant=OWN) as client:
        root.script_flush()
        with pytest.raises(RedisUnavailable, match="Fix: start a worker"):
            client.submit(prompt="x", model="m")


def test_a_job_for_a_queue_that_is_not_the_producers_takes_no_other_of_its_lot_along(
    server: GuardedRedis,
) -> None:
    jobs = [{"prompt": "x", "model": model} for model in ("m", "other", "m")]
    with Redis.from_url(server.url) as root, Client(server.url_of(f"{OWN}-producer"), tenant=OWN) as client:
        root.flushall()
        keep_loaded(root, kept_scripts("producers"))
        outcomes = list(client.submit_many(jobs))
    assert [type(outcome.error) for outcome in outcomes] == [type(None), NotPermitted, type(None)]


@pytest.mark.parametrize(
    ("user", "held"), [("producer", "is a set, not a list"), ("handmade-producer", "is not a list")]
)
def test_a_producer_is_told_which_key_of_a_queue_is_no_list(
    server: GuardedRedis, user: str, held: str
) -> None:
    with (
        Redis.from_url(server.url) as root,
        Client(server.url_of(f"{OWN}-{user}"), tenant=OWN) as client,
    ):
        root.flushall()
        keep_loaded(root, kept_scripts("producers"))
        root.sadd(f"herd.{OWN}:m\x06\x163", "x")
        with pytest.raises(RedisUnavailable, match=rf'm\\x06\\x163" {held}\. Fix: delete or rename it'):
            client.submit(prompt="x", model="m")


def test_a_stranger_is_not_let_in(server: GuardedRedis) -> None:
    with pytest.raises(AuthenticationError):
        Redis(port=server.port, retry=Retry(NoBackoff(), 0)).ping()


def test_a_user_may_have_several_roles() -> None:
    acl = Acl(OWN, ["herd.acme:m"])
    both = acl.rights(P) + acl.rights(S)
    assert both.commands == acl.rights(P).commands | acl.rights(S).commands
    assert both.keys == acl.rights(P).keys | acl.rights(S).keys


def test_passwords_lie_in_files_of_their_own_and_stay(tmp_path: Path) -> None:
    rights = Acl(OWN, ["herd.acme:m"]).rights(S)
    (tmp_path / "given.password").write_text("hunter2\n")
    path = write_users(tmp_path, {"given": rights, "drawn": rights})
    drawn = (tmp_path / "drawn.password").read_text()
    first = path.read_text()
    assert write_users(tmp_path, {"given": rights}).read_text() == first
    assert (tmp_path / "drawn.password").read_text() == drawn
    assert len(drawn) > 40
    assert "hunter2" not in first
    assert drawn not in first
    assert first.startswith("user default off ")
    for file in (path, tmp_path / "drawn.password"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("queue", ["herd.*", "herd.acme:*", "herd.acme:m ~*", "herd.acme:", "herd.other:m"])
def test_a_queue_that_is_not_the_tenants_own_is_refused(queue: str) -> None:
    with pytest.raises(BadInput, match="model"):
        Acl(OWN, [queue])


def test_who_gives_no_name_stays_off(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="without a name"):
        write_users(tmp_path, {"default": Acl(OWN, []).rights(W)})


@pytest.mark.parametrize("name", ["", "a b", "a\nuser b on nopass"])
def test_a_name_that_could_write_rules_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="letters, digits"):
        write_users(tmp_path, {name: Acl(OWN, []).rights(S)})


def test_an_empty_password_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.password").touch()
    with pytest.raises(BadInput, match="is empty"):
        write_users(tmp_path, {"a": Acl(OWN, []).rights(S)})
