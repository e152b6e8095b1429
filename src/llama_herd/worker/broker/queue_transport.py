"""kombu's Redis transport with our channel: how a worker's loop reads what comes from Redis."""

from typing import Any

from kombu.transport import redis as redis_transport

from llama_herd.worker.broker.queue_channel import QueueChannel


class ChannelPoller(redis_transport.MultiChannelPoller):  # type: ignore[misc]
    """kombu's poller, but what comes on a channel's connection need be no message."""

    def on_poll_start(self) -> None:
        for channel in self._channels:
            channel.end_wait()
        super().on_poll_start()

    def on_readable(self, fileno: int) -> None:
        """Read what comes for a worker without room, too: kombu takes it for the connection's end."""
        channel, kind = self._fd_to_chan.get(fileno, (None, ""))
        if kind == "BRPOP" and channel is not None:
            channel._brpop_read()
        else:
            super().on_readable(fileno)

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """Wait for events where there is no hub, until it is time to look again at most."""
        for channel in self._channels:
            channel.end_wait()
        left_s = (channel.wait_left_s for channel in self._channels)
        super().get(callback, min([1.0 if timeout is None else timeout, *left_s]))


class QueueTransport(redis_transport.Transport):  # type: ignore[misc]
    """kombu's Redis transport with the guarded channel."""

    Channel = QueueChannel

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cycle = ChannelPoller()


class SocketQueueTransport(QueueTransport):
    """The same at a socket file, whose address the channel reads by itself."""

    can_parse_url = True
