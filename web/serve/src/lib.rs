//! An HTTP server in which every request has a priority.
//!
//! This is the server behind `upshift serve`, as a library for any tower service. It supports
//! HTTP/1.1 and HTTP/2, with TLS or without, and serves static files. It also implements limits,
//! admission control, draining, reloading, metrics and an access log.
//!
//! ```no_run
//! use upshift_serve::{Config, Server};
//!
//! #[upshift::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let app = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
//!     let server = Server::bind(Config::default())?.with_service(app).start()?;
//!     let control = server.control();
//!     upshift::spawn(
//!         async move {
//!             let _ = upshift::signal::terminate().await;
//!             control.drain();
//!         },
//!         upshift::Priority::Inherit,
//!     )
//!     .detach();
//!     server.run().await;
//!     Ok(())
//! }
//! ```
//!
//! # Stages of a request
//!
//! ```text
//!  connection coroutine, at the level of receiving
//!    read, parse ─► level: operator's rule, else the client's `Priority`, else u=3
//!                   ├─ too many requests of this address ─► 429
//!                   ├─ this level would wait too long, or has too many ─► 503
//!                   ▼
//!    the coroutine takes the level (HTTP/2: the stream's own coroutine) and queues there
//!                   ▼
//!    handler ─► response, body ─► back to the level of receiving
//! ```
//!
//! | folder | concern |
//! |---|---|
//! | `config` | settings, addresses, units |
//! | `server` | listening, accepting, draining; the state that all connections share |
//! | `connection` | HTTP/1 and HTTP/2 on a connection, its time-outs, the order of streams |
//! | `tls` | encryption, certificates |
//! | `request` | a request from head to end: its level, its site, its bodies |
//! | `admission` | admission control and request rates |
//! | `sites` | virtual hosts, error pages |
//! | `files` | static files |
//! | `operator` | metrics, access log, messages, commands |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod admission;
mod clock;
mod config;
mod connection;
mod files;
#[cfg(test)]
mod fuzz;
mod operator;
mod per_vcpu;
mod request;
mod server;
mod sites;
mod tls;

pub use config::{
    Address, Admission, BindTo, Config, Endpoint, Files, Limits, Redirect, Site, TlsFiles,
};
pub use connection::client::{Connection, Tls};
pub use operator::control::ask;
pub use request::body::Body;
pub use request::priority::Urgency;
pub use request::request_body::{RequestBody, TooLarge};
pub use request::rules::{Network, Rule};
pub use server::shared::{Control, Reloaded};
pub use server::{Server, Started};
