//! axum's `serve`, on the vCPUs and with levels. Feature `axum`.
//!
//! [`serve`](serve()) takes the arguments of `axum::serve`, with a listener of this runtime.
//! Connections and handlers are coroutines. [`Serve::levels`] gives each request its level, and
//! handlers that compute do not delay more urgent handlers.
//!
//! ```no_run
//! use axum::{Router, routing::{get, post}};
//! use upshift::{Level, net::TcpListener, signal};
//!
//! #[upshift::main]
//! async fn main() -> std::io::Result<()> {
//!     let app = Router::new()
//!         .route("/orders", get(|| async { "an order" }))
//!         .route("/reports", post(|| async { "a report" }));
//!     upshift::axum::serve(TcpListener::bind("127.0.0.1:8080")?, app)
//!         .levels(|request| match request.uri().path() {
//!             "/orders" => Level::at::<8>(),
//!             _ => Level::at::<40>(),
//!         })
//!         .with_graceful_shutdown(async { _ = signal::terminate().await })
//!         .await
//! }
//! ```
//!
//! `axum::serve` itself spawns with tokio, so its connections share tokio's thread and have no
//! level. With a listener of this runtime it does not compile. The first error is "the trait bound
//! `upshift::net::TcpListener: axum::serve::Listener` is not satisfied"; the second one names
//! [`serve`](serve()):
//!
//! ```compile_fail,E0277
//! # async fn example(app: axum::Router, listener: upshift::net::TcpListener) {
//! axum::serve(listener, app).await;
//! # }
//! ```
//!
//! # The address of a client
//!
//! `into_make_service_with_connect_info` works as with `axum::serve`: with `SocketAddr` on TCP,
//! with or without TLS, and with types that implement axum's `Connected` for an
//! [`IncomingStream`]:
//!
//! ```no_run
//! use axum::{Router, extract::{ConnectInfo, connect_info::Connected}, routing::get};
//! use upshift::{axum::IncomingStream, net::UnixListener, net::unix::UCred};
//!
//! #[derive(Clone)]
//! struct Client(Option<UCred>);
//!
//! impl Connected<IncomingStream<'_, UnixListener>> for Client {
//!     fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Client {
//!         Client(stream.io().peer_cred().ok())
//!     }
//! }
//!
//! async fn user(ConnectInfo(client): ConnectInfo<Client>) -> String {
//!     format!("{:?}", client.0.map(|process| process.uid()))
//! }
//!
//! # async fn example() -> std::io::Result<()> {
//! let app = Router::new().route("/", get(user));
//! let app = app.into_make_service_with_connect_info::<Client>();
//! upshift::axum::serve(UnixListener::bind("/run/example.sock")?, app).await
//! # }
//! ```
//!
//! # Names of routes
//!
//! [`NameRoutes`] is a layer that names each request by its method and route, so that
//! `upshift top`, spans and reports of stalls show this name.
//!
//! # Web sockets
//!
//! axum's `on_upgrade` spawns its callback with tokio and needs feature `tokio-rt`. The callback is
//! a task on tokio's thread and has no level. `upshift::spawn(…, level).await` in the callback runs
//! a part of it on the vCPUs.

mod connect_info;
mod name_routes;
mod refusal;
mod serve;

pub use crate::hyper::{IncomingStream, Listener};
pub use name_routes::{NameRoutes, NameRoutesService};
pub use serve::{Serve, ServeFuture, serve};

#[cfg(feature = "tls")]
pub use crate::hyper::TlsListener;
