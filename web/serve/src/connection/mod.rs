//! Serves connections, that is, HTTP/1 and HTTP/2 on a socket, with TLS or without.
//!
//! | module | concern |
//! |---|---|
//! | `conn` | the state of a connection that its requests and the operator see |
//! | `serve` | TLS, the choice of the protocol, the graceful shutdown |
//! | `clocks` | the time-outs of a connection |
//! | `transport`, `observed` | its I/O: the bytes below HTTP, and hyper's view of them |
//! | `send_file` | files that go to the socket without a copy |
//! | `heads` | responses that bypass hyper |
//! | `frames`, `streams`, `sending` | `PRIORITY_UPDATE`; the order in which HTTP/2 streams send |
//! | `client` | the description of a client for services |

pub(crate) mod client;
pub(crate) mod clocks;
pub(crate) mod conn;
mod frames;
pub(crate) mod heads;
mod observed;
pub(crate) mod send_file;
pub(crate) mod sending;
mod serve;
mod streams;
pub(crate) mod transport;
