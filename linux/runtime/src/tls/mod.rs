//! TLS by rustls over any stream. Feature `tls`.
//!
//! Versions 1.2 and 1.3, with the cryptography of the crate `ring`. The protocol is
//! rustls' and `tokio-rustls`'s; here are the configuration from PEM files, and a stream
//! with the traits of [`io`](crate::io). Reading hands out rustls' own plaintext, writing
//! encrypts into rustls' buffers and sends those: no buffer is added.
//!
//! A handshake waits for the peer for as long as it takes: wrap [`Acceptor::accept`] in a
//! [`timeout`](crate::time::timeout), and let each connection do it in a coroutine of its
//! own.
//!
//! `examples/tls.rs` makes a certificate and talks to itself.

mod config;
mod stream;

pub use config::{client_config, load_server_config, server_config};
pub use stream::{Acceptor, Connector, TlsStream};
/// The library, for configuration beyond what is here.
pub use tokio_rustls::rustls;
