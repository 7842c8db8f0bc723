//! Connections: HTTP/1 and HTTP/2 on a socket, with TLS or without.
//!
//! | module | concern |
//! |---|---|
//! | `conn` | the state of a connection that its requests and the operator see |
//! | `conversation` | its life: the protocol, and the end |
//! | `clocks` | its time-outs |
//! | `transport`, `observed` | its I/O, below and as the HTTP library sees it |
//! | `direct` | files that go to the socket without a copy |
//! | `heads` | answers without the HTTP library |
//! | `frames`, `streams`, `sending` | `PRIORITY_UPDATE` of HTTP/2; which stream sends first |
//! | `client` | the facts about a client that a service may know |

pub(crate) mod client;
pub(crate) mod clocks;
pub(crate) mod conn;
mod conversation;
pub(crate) mod direct;
mod frames;
pub(crate) mod heads;
mod observed;
pub(crate) mod sending;
mod streams;
pub(crate) mod transport;
