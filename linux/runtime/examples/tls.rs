//! TLS: a server with a self-signed certificate, and a client that trusts this certificate. Each
//! connection makes its handshake in its own coroutine and within a time limit, so that a silent
//! client delays no other.
//!
//! Run it with `cargo run -p upshift --example tls`.

use std::io;
use std::time::Duration;

use upshift::io::{AsyncBufReadExt, AsyncWriteExt, StreamExt};
use upshift::net::{TcpListener, TcpStream};
use upshift::tls::{self, Acceptor, Connector};
use upshift::{Priority, time};

#[upshift::main]
async fn main() -> io::Result<()> {
    let generated =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(io::Error::other)?;
    let (certificate, key) = (generated.cert.pem(), generated.signing_key.serialize_pem());

    let config = tls::server_config(certificate.as_bytes(), key.as_bytes())?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    upshift::spawn(serve(listener, Acceptor::new(config)), Priority::Inherit).detach();

    let connector = Connector::new(tls::client_config(certificate.as_bytes())?);
    let stream = TcpStream::connect(address).await?;
    let mut stream = connector.connect("localhost", stream).await?;
    println!("connected: {stream:?}");
    stream.write_all(b"secret\n").await?;
    stream.flush().await?;
    let mut lines = stream.lines();
    if let Some(line) = lines.next().await {
        println!("the server answers: {}", line?);
    }
    Ok(())
}

async fn serve(listener: TcpListener, acceptor: Acceptor) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let acceptor = acceptor.clone();
        let conversation = async move {
            if let Err(error) = answer(stream, acceptor).await {
                eprintln!("{peer}: {error}");
            }
        };
        upshift::spawn(conversation, Priority::Inherit).detach();
    }
}

async fn answer(stream: TcpStream, acceptor: Acceptor) -> io::Result<()> {
    let handshake = time::timeout(Duration::from_secs(5), acceptor.accept(stream));
    let mut stream = handshake.await??;
    let mut line = String::new();
    while stream.read_line(&mut line).await? != 0 {
        stream.write_all(line.to_uppercase().as_bytes()).await?;
        stream.flush().await?;
        line.clear();
    }
    Ok(())
}
