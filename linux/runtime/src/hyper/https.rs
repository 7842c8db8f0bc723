//! A client for `https` and `http`, with hyper-rustls.

use std::io;

use ::hyper::body::Body;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use tokio_rustls::rustls::{ClientConfig, crypto};
use upshift_core::Priority;

use super::{Clock, Spawner, TcpConnector};

/// A connector to URIs of `https`, with HTTP/2 where the server chooses it, and of `http`.
pub type HttpsConnector = hyper_rustls::HttpsConnector<TcpConnector>;

/// Creates a client that speaks `https` and `http` and keeps connections for later requests. The
/// client trusts the root certificates in the system's store, or in `SSL_CERT_FILE` and
/// `SSL_CERT_DIR`.
///
/// Its connections are coroutines of this priority. An HTTP/2 connection carries requests of many
/// levels, so pass at least the level of the most urgent request, or create a client for each class
/// of requests; with [`Priority::Inherit`] a connection stays at the level of the request that
/// opened it.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use http_body_util::{BodyExt, Empty};
/// use upshift::Level;
///
/// let client = upshift::hyper::https_client::<Empty<bytes::Bytes>>(Level::at::<8>())?;
/// let response = client.get("https://example.org/".parse()?).await?;
/// let body = response.into_body().collect().await?.to_bytes();
/// # Ok(()) }
/// ```
///
/// # Errors
/// If the system has no root certificates that can be read.
pub fn https_client<B>(priority: impl Into<Priority>) -> io::Result<Client<HttpsConnector, B>>
where
    B: Body + Send,
    B::Data: Send,
{
    let provider = crypto::ring::default_provider();
    let builder = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider)?;
    let connector = builder
        .https_or_http()
        .enable_http1()
        .enable_http2()
        .wrap_connector(TcpConnector);
    Ok(client(connector, priority.into()))
}

/// Creates a client like [`https_client`], with a TLS configuration, for instance one of
/// [`tls::client_config`](crate::tls::client_config). Use it for other root certificates, or for a
/// certificate of the client's own. The protocols of the configuration (ALPN) are replaced.
pub fn https_client_with<B>(
    mut config: ClientConfig,
    priority: impl Into<Priority>,
) -> Client<HttpsConnector, B>
where
    B: Body + Send,
    B::Data: Send,
{
    config.alpn_protocols = Vec::new();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .enable_http2()
        .wrap_connector(TcpConnector);
    client(connector, priority.into())
}

fn client<B>(connector: HttpsConnector, priority: Priority) -> Client<HttpsConnector, B>
where
    B: Body + Send,
    B::Data: Send,
{
    Client::builder(Spawner::new(priority))
        .timer(Clock)
        .pool_timer(Clock)
        .build(connector)
}
