//! An HTTP server in which every request has a priority.
//!
//! `upshift serve` on the command line; here as a library, for any tower service. HTTP/1.1 and
//! HTTP/2, with TLS or without; static files; limits, admission, draining, reloading, metrics and an
//! access log.
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
//! # The way of a request
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
//! | module | concern |
//! |---|---|
//! | `config`, `units` | what can be set |
//! | `priority`, `dictionary`, `rules` | the level of a request |
//! | `admission`, `absence`, `rates`, `refusal` | what is refused |
//! | `server`, `shared`, `shards` | listening; what all connections share, and what each vCPU has of it |
//! | `conversation`, `connection`, `watched`, `sweep`, `lend`, `tls`, `client` | connections and their time-outs |
//! | `heads`, `upload` | heads that are refused; bodies that nobody reads |
//! | `host`, `sites`, `certificates` | virtual hosts: which site a request is for, which certificate its client is shown |
//! | `service`, `exchange`, `under_way`, `counted`, `in_flight` | a request from head to end, and its `reprio` |
//! | `frames`, `streams`, `sending` | `PRIORITY_UPDATE` of HTTP/2; which stream sends first |
//! | `builtin`, `files`, `pages`, `reply`, `body` | responses |
//! | `direct` | files that go to the socket without a copy |
//! | `request_body` | what a handler reads |
//! | `metrics`, `access_log`, `notice`, `control` | what the operator sees and says |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod absence;
mod access_log;
mod address;
mod admission;
mod bind;
mod body;
mod builtin;
mod certificates;
mod client;
mod clock;
mod config;
mod connection;
mod control;
mod conversation;
mod counted;
mod dictionary;
mod direct;
mod exchange;
mod files;
mod frames;
#[cfg(test)]
mod fuzz;
mod heads;
mod host;
mod in_flight;
mod lend;
mod metrics;
mod notice;
mod pages;
mod priority;
mod rates;
mod refusal;
mod reply;
mod request_body;
mod rules;
mod sending;
mod server;
mod service;
mod shards;
mod shared;
mod sites;
mod streams;
mod sweep;
mod tls;
mod under_way;
mod units;
mod upload;
mod watched;

pub use address::Address;
pub use body::Body;
pub use client::{Connection, Tls};
pub use config::{Admission, Config, Endpoint, Files, Limits, Site, TlsFiles};
pub use control::ask;
pub use priority::Urgency;
pub use request_body::{RequestBody, TooLarge};
pub use rules::{Network, Rule};
pub use server::{Server, Started};
pub use shared::{Control, Reloaded};
