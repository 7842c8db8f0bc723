//! Describes the client of a request to services.

use std::net::SocketAddr;

/// The connection of a request, which a service finds in the request's extensions.
///
/// The extractor `axum::Extension<Connection>` passes it to a handler. A middleware that inserts
/// `ConnectInfo(connection.peer)` into the extensions serves handlers that extract axum's
/// `ConnectInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connection {
    /// Address of the client, or of a proxy in front; 0.0.0.0:0 on a Unix socket.
    pub peer: SocketAddr,
    /// Result of the TLS handshake; `None` without TLS.
    pub tls: Option<Tls>,
}

/// The result of a TLS handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// Version of TLS, such as `TLSv1_3`.
    pub version: String,
    /// Protocol above TLS (ALPN), for example `h2`.
    pub protocol: Option<String>,
    /// Name under which the client asked for the server (SNI).
    pub server_name: Option<String>,
}
