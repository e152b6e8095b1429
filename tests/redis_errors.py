"""How often Redis has refused something."""

from redis import Redis


def num_errors(redis: Redis, code: str) -> int:
    """Errors of this code, such as OOM, since the last CONFIG RESETSTAT.

    A Redis before 7 counts those of commands in scripts as ERR, like many others.
    """
    is_old = int(redis.info("server")["redis_version"].partition(".")[0]) < 7
    found = redis.info("errorstats").items()  # of older versions of redis-py the text "count=1"
    nums = {name: int("".join(filter(str.isdigit, str(each)))) for name, each in found}
    return sum(nums.get(f"errorstat_{one}", 0) for one in ([code, "ERR"] if is_old else [code]))
