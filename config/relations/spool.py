"""Relations of the spool's settings with Kafka's and the gateway's own."""

from config.relations.rules import when

_FRAME_BYTES = 64 * 1024  # names and numbers that the spool stores with a batch; usually below a hundredth of it

REFUSED = (
    when(
        lambda s: s.spool.enabled and s.kafka.batch_bytes + _FRAME_BYTES > s.spool.max_bytes,
        "<kafka.batch_bytes> and 64KiB for its description are more than <spool.max_bytes>: a full batch could never "
        "be spooled, and its partition would stop; lower the first or raise the second.",
        "spool.enabled",
    ),
    when(
        lambda s: (
            s.spool.enabled
            and s.kafka.batch_bytes + _FRAME_BYTES <= s.spool.max_bytes < s.kafka.max_record_bytes + _FRAME_BYTES
        ),
        "<kafka.max_record_bytes> and 64KiB for its description are more than <spool.max_bytes>: the largest record "
        "could never be spooled, and its partition would stop; lower the first or raise the second.",
        "spool.enabled",
        "kafka.batch_bytes",
    ),
    when(
        lambda s: s.spool.enabled and s.spool.replay_max_bytes_per_second < s.kafka.batch_bytes,
        "<spool.replay_max_bytes_per_second> is less than <kafka.batch_bytes>: not even a batch a second could be "
        "replayed; raise the first.",
        "spool.enabled",
    ),
)

WARNED = (
    when(
        lambda s: s.spool.enabled and s.spool.after >= s.kafka.delivery_timeout,
        "<spool.after> is not shorter than <kafka.delivery_timeout>: the producer would be replaced before the spool "
        "takes over, and the sessions' windows stay full until then; lower the first.",
        "spool.enabled",
    ),
    when(
        lambda s: s.spool.enabled and s.spool.after >= s.http.overdue_after,
        "<spool.after> is not shorter than <http.overdue_after>: /readyz turns red before the spool takes over; lower "
        "the first or raise the second.",
        "spool.enabled",
    ),
    when(
        lambda s: s.spool.enabled and not s.spool.after and s.spool.acknowledge == "never",
        "<spool.after> sends everything through the disk, but <spool.acknowledge>: messages still wait at the MQTT "
        'broker until Kafka has them, so the disk costs time and bridges nothing; use "fsync", or another time.',
        "spool.enabled",
    ),
)
