//! Opens outgoing connections for hyper-util's client.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::hyper::Uri;
use ::hyper::body::Body;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use tower_service::Service;

use super::{Clock, Io, Spawner};
use crate::net::TcpStream;

/// A connector to the host and port of a URI of scheme `http`, on this runtime. The C library looks
/// up names, on a thread for blocking calls; the addresses are tried in order. Segments are sent
/// at once (`TCP_NODELAY`).
///
/// The connector refuses `https`, since it does not encrypt. For `https`, use `https_client`
/// (feature `hyper-tls-client`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Connector;

/// A connector like [`Connector`], for any scheme. The port is that of the URI; if the URI has
/// none, it is 443 for `https` and `wss`, and 80 for other schemes. It is meant for use below
/// connectors that add TLS, such as hyper-rustls'.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnector;

/// Creates a client that keeps connections for later requests, with [`Connector`].
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use http_body_util::{BodyExt, Empty};
///
/// let client = upshift::hyper::client::<Empty<bytes::Bytes>>();
/// let response = client.get("http://127.0.0.1:8080/".parse()?).await?;
/// let body = response.into_body().collect().await?.to_bytes();
/// # Ok(()) }
/// ```
#[must_use]
pub fn client<B>() -> Client<Connector, B>
where
    B: Body + Send,
    B::Data: Send,
{
    Client::builder(Spawner::default())
        .timer(Clock)
        .pool_timer(Clock)
        .build(Connector)
}

/// The future of a connection of [`Connector`] or [`TcpConnector`].
pub struct Connecting(Pin<Box<dyn Future<Output = io::Result<Io>> + Send>>);

impl Future for Connecting {
    type Output = io::Result<Io>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<Io>> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").finish_non_exhaustive()
    }
}

impl Service<Uri> for Connector {
    type Response = Io;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        if uri.scheme_str() == Some("http") {
            return TcpConnector.call(uri);
        }
        Connecting(Box::pin(async move {
            Err(invalid(format!(
                "{uri}: this client speaks only http; use https_client for https"
            )))
        }))
    }
}

impl Service<Uri> for TcpConnector {
    type Response = Io;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        Connecting(Box::pin(async move {
            let host = uri
                .host()
                .ok_or_else(|| invalid(format!("{uri} names no host")))?;
            let port = uri.port_u16().unwrap_or(match uri.scheme_str() {
                Some("https" | "wss") => 443,
                _ => 80,
            });
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            Ok(Io::new(stream))
        }))
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

impl Connection for Io {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
