//! What a service may know of the client of a request.

use std::net::SocketAddr;

/// The connection that a request came on: in its extensions, for a service.
///
/// `axum::Extension<Connection>` hands it to a handler; a middleware that inserts `ConnectInfo(connection.peer)` into the extensions
/// serves those that ask for axum's `ConnectInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connection {
    /// The address of the client, or of a proxy in front; 0.0.0.0:0 on a Unix socket.
    pub peer: SocketAddr,
    /// What was agreed upon, if TLS is spoken.
    pub tls: Option<Tls>,
}

/// What client and server have agreed upon.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// The version of TLS, such as `TLSv1_3`.
    pub version: String,
    /// The protocol above it (ALPN), `h2` for instance.
    pub protocol: Option<String>,
    /// The name under which the client asked for the server (SNI).
    pub server_name: Option<String>,
}
