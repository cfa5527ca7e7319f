//! Provider `tcp`: messages, tags and remote memory over TCP, on the wire protocol of C libfabric's `tcp`. So far the
//! protocol, without I/O.

pub mod wire;
