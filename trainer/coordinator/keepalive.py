"""Options of gRPC's servers and clients that make a vanished or stopped peer an ended stream."""

OPTIONS = (
    # A worker that vanished without a word, or was stopped, doesn't keep its leases. gRPC's own
    # threads answer a ping, so a long computation is no silence.
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_pings_without_data", 0),
)
"""Of the server and of its clients."""
