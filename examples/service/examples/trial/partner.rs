//! Runs the partner, which is an https server that quotes prices.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use axum::extract::Path as Item;
use axum::routing::get;
use axum::{Json, Router};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::Result;

/// Name of the file with the certificate that the service must trust.
pub const CERTIFICATE: &str = "partner.pem";

/// Makes a certificate, writes it to the folder, and serves until the program ends.
pub fn start(folder: &Path) -> Result<SocketAddr> {
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    fs::write(folder.join(CERTIFICATE), pair.cert.pem())?;
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der())?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    thread::spawn(move || runtime.block_on(serve(listener, acceptor)));
    Ok(address)
}

async fn serve(listener: std::net::TcpListener, acceptor: TlsAcceptor) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let app = Router::new().route("/prices/{item}", get(price));
    loop {
        let (stream, _) = listener.accept().await?;
        let (acceptor, app) = (acceptor.clone(), app.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = TowerToHyperService::new(app);
            // The service sees a failed connection; the partner ignores its error.
            let _ = Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn price(Item(item): Item<String>) -> Json<serde_json::Value> {
    let cents = 100 * item.len();
    Json(serde_json::json!({ "item": item, "cents": cents }))
}
