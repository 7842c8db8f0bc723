//! TLS by rustls over any stream. Feature `tls`.
//!
//! Versions 1.2 and 1.3, with the cryptography of the crate `ring`. The protocol is implemented by
//! rustls and `tokio-rustls`; this module has the configuration from PEM files, and a stream with
//! the traits of [`io`](crate::io). Reads borrow rustls' own plaintext; writes encrypt into rustls'
//! buffers and send those. So no buffer is added.
//!
//! A handshake waits for the peer without a limit, so wrap [`Acceptor::accept`] in a
//! [`timeout`](crate::time::timeout). Await it in the coroutine of the connection, not in the
//! coroutine that accepts.
//!
//! `examples/tls.rs` creates a certificate and talks to itself.

mod config;
mod stream;

pub use config::{client_config, load_server_config, server_config};
pub use stream::{Acceptor, Connector, TlsStream};
/// The library, for configuration beyond this module.
pub use tokio_rustls::rustls;
