//! A TCP echo server and its client, in one program.
//!
//! Run it with `cargo run -p upshift --example echo`.

use std::io;

use upshift::Priority;
use upshift::net::{TcpListener, TcpStream};

#[upshift::main]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    println!("echoing on {address}");
    upshift::spawn(serve(listener), Priority::Inherit).detach();

    let mut stream = TcpStream::connect(address).await?;
    for word in ["one", "two", "three"] {
        stream.write_all(word).await.0?;
        let (count, buffer) = stream.read(vec![0; 64]).await;
        println!("{}", String::from_utf8_lossy(&buffer[..count?]));
    }
    Ok(())
}

async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let conversation = async move {
            if let Err(error) = echo(stream).await {
                eprintln!("{peer}: {error}");
            }
        };
        upshift::spawn(conversation, Priority::Inherit).detach();
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    loop {
        let data = stream.recv().await?;
        if data.is_empty() {
            return Ok(());
        }
        // The received buffer is sent back without a copy.
        stream.write_all(data).await.0?;
    }
}
