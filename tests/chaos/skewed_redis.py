"""A redis-server whose clock can be moved: a few lines of C between it and the kernel."""

import shlex
import shutil
import struct
import subprocess
from pathlib import Path

from tests.chaos.harness.fragile_redis import FragileRedis

SOURCE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long *ahead_s;

__attribute__((constructor)) static void map_offset(void) {
    ahead_s = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, open(getenv("CLOCK_AHEAD"), O_RDONLY), 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += *ahead_s;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}
"""


class SkewedRedis(FragileRedis):
    """Its clock jumps when it is told to."""

    def __init__(self, folder: Path) -> None:
        """Library and offset lie in `folder`."""
        super().__init__()
        self._offset = folder / "ahead"
        library = folder / "clock.so"
        self.move_clock(0)
        (folder / "clock.c").write_text(SOURCE)
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(folder / "clock.c")]
        subprocess.run(command, check=True)
        paths = {"LD_PRELOAD": library, "CLOCK_AHEAD": self._offset}
        self.variables = " ".join(f"{name}={shlex.quote(str(path))}" for name, path in paths.items())

    def move_clock(self, seconds: int) -> None:
        """So far it is ahead of the machine's clock from now on."""
        if not self._offset.exists():
            self._offset.write_bytes(struct.pack("l", 0))
        with self._offset.open("r+b") as file:
            file.write(struct.pack("l", seconds))


def has_compiler() -> bool:
    return shutil.which("cc") is not None
