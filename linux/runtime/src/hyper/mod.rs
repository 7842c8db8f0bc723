//! Adapters that run hyper on this runtime, and with it axum, tower and every other crate that uses
//! hyper's traits (feature `hyper`). For an axum application, the module `axum` has `serve` with
//! axum's own signature.
//!
//! | item | description |
//! |---|---|
//! | [`Io`] | `hyper::rt::Read` and `Write` for a [`TcpStream`](crate::net::TcpStream) |
//! | [`Spawner`] | `hyper::rt::Executor`, at a level |
//! | [`Clock`] | `hyper::rt::Timer` |
//! | [`Server`], [`serve`] | a server of HTTP/1.1 and HTTP/2 for any tower service |
//! | [`Listener`] | the server's listeners: TCP, Unix, and `TlsListener` (feature `tls`) |
//! | [`Levelled`] | a service whose requests each run at a level of their own |
//! | [`ReceiveLevels`], [`Allowance`] | levels at which connections receive, and their CPU time |
//! | `Connector`, `client` | outgoing connections (feature `hyper-client`) |
//! | `https_client` | a client with TLS and HTTP/2 (feature `hyper-tls-client`) |
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use upshift::net::TcpListener;
//!
//! #[upshift::main]
//! async fn main() -> std::io::Result<()> {
//!     let app = Router::new().route("/", get(|| async { "Hello" }));
//!     upshift::hyper::serve(TcpListener::bind("127.0.0.1:8080")?, app).await
//! }
//! ```
//!
//! Beyond hyper's own cost, a request costs one receive completion and one send. The received bytes
//! are copied once into hyper's buffer. For the send, hyper's pieces are gathered into an owned
//! buffer, which is submitted with the vCPU's other operations. Neither costs an allocation or a
//! system call of its own. More than [`Io::MAX_COPIED`] bytes are not copied but sent directly, by
//! system calls.

#[cfg(feature = "hyper-client")]
mod connect;
mod executor;
#[cfg(feature = "hyper-tls-client")]
mod https;
mod io;
mod levelled;
mod listener;
mod receiving;
mod reply;
mod send_file;
mod server;
mod timer;
#[cfg(feature = "tls")]
mod tls;

#[cfg(feature = "hyper-client")]
pub use connect::{Connecting, Connector, TcpConnector, client};
pub use executor::Spawner;
#[cfg(feature = "hyper-tls-client")]
pub use https::{HttpsConnector, https_client, https_client_with};
pub use io::Io;
pub use levelled::{LevelBody, LevelFuture, Levelled, RequestLevel};
pub use listener::{IncomingStream, Listener};
pub use receiving::{Allowance, Charged, ReceiveLevels, StreamSpawner};
#[cfg(feature = "axum")]
pub(crate) use server::MakeService;
pub use server::{Server, serve};
pub use timer::Clock;
#[cfg(feature = "tls")]
pub use tls::TlsListener;
