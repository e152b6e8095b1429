"""A TCP proxy that disturbs connections as networks do: it delays, slows down and cuts them off.

with FaultProxy(port) as proxy:
    worker connects to proxy.url
    proxy.reset()
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

CHUNK_BYTES = 65_536
#: What a slow line carries at once.
PIECE_BYTES = 4096


class FaultProxy:
    """Stands between its clients and 127.0.0.1:`target_port`; passes on everything until told otherwise.

    Everything may be changed at any time, and applies to all connections, open and new ones.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self.port = 0
        self.delay_s = 0.0
        self.is_bytewise = False
        #: How much each direction of a connection carries in a second; 0: any.
        self.bytes_per_s = 0
        #: Number of replies to cut off from now on, each with its connection; the server has acted by then.
        self.num_cuts = 0
        #: The call that was lost as `lose` says, or whose reply was; empty: none yet.
        self.lost = b""
        self._lost_in, self._loses_reply = 0, False

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def reset(self) -> None:
        """Reset all open connections, as a firewall or a restarted router would."""
        self._call(self._reset)

    def lose(self, number: int, *, is_reply: bool) -> None:
        """Lose the call of this number from now on (1: the next), or its reply alone, with its connection."""
        self._loses_reply, self.lost, self._lost_in = is_reply, b"", number

    def spare(self) -> bytes:
        """Lose no further call. Returns the one that was lost, as in `lost`."""
        self._call(partial(setattr, self, "_lost_in", 0))
        return self.lost

    def hold(self) -> None:
        """Be a black hole: connections stay open and new ones are accepted, but nothing arrives."""
        self._call(self._is_open.clear)

    def release(self) -> None:
        """End `hold`: delayed data arrives now, as TCP would send it again."""
        self._call(self._is_open.set)

    def __enter__(self) -> Self:
        self._thread.start()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._server.close)
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, function: Callable[[], object]) -> None:
        """Run a function on the proxy's thread and wait for it."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(function)
        self._loop.call_soon_threadsafe(done.set)
        done.wait()

    async def _end_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reset(self) -> None:
        for writer in self._writers:
            linger = struct.pack("ii", 1, 0)  # close by RST
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Connect a client to the server, and pass on both directions until one of them ends."""
        with suppress(OSError):
            server_reader, server = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._writers |= {client, server}
            is_cut = asyncio.Event()
            pumps = [
                asyncio.ensure_future(self._pump(client_reader, server, is_cut)),
                asyncio.ensure_future(self._pump(server_reader, client, is_cut, are_replies=True)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            server.close()
            self._writers -= {client, server}
        client.close()

    def _is_lost(self, call: bytes) -> bool:
        """Count a call; returns whether it is the one that `lose` means."""
        self._lost_in -= 1
        if self._lost_in:
            return False
        self.lost = call
        return True

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_cut: asyncio.Event,
        *,
        are_replies: bool = False,
    ) -> None:
        """Pass on one direction, disturbed as the proxy is told to. is_cut: the next reply is lost."""
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await asyncio.sleep(self.delay_s)
                await self._is_open.wait()
                if not are_replies and self._is_lost(data):
                    if not self._loses_reply:
                        return
                    is_cut.set()
                if are_replies and is_cut.is_set():
                    return
                if are_replies and self.num_cuts:
                    self.num_cuts -= 1
                    writer.write(data[: len(data) // 2])
                    return
                await self._write(writer, data)

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        size = 1 if self.is_bytewise else PIECE_BYTES if self.bytes_per_s else CHUNK_BYTES
        for begin in range(0, len(data), size):
            piece = data[begin : begin + size]
            await asyncio.sleep(len(piece) / self.bytes_per_s if self.bytes_per_s else 0)
            writer.write(piece)
            await writer.drain()
