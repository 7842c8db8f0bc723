//! Graceful shutdown: on SIGTERM or Ctrl-C a server stops accepting, lets running conversations
//! end, and cuts off those that take longer than a limit. When no descriptors are left, the server
//! waits for a moment and continues to accept.
//!
//! Without arguments, a client inside the program talks to the server, and the program sends itself
//! a SIGTERM. With an address, the program serves until it receives a signal:
//!
//! ```text
//! cargo run -p upshift --example graceful_shutdown -- 127.0.0.1:7000
//! ```

use std::io;
use std::sync::Arc;
use std::time::Duration;

use upshift::net::{TcpListener, TcpStream};
use upshift::process::Command;
use upshift::signal::{SIGINT, SIGTERM, Signals};
use upshift::sync::Semaphore;
use upshift::{Priority, time};

/// Maximum number of concurrent conversations. Further connections wait in the listener's queue.
const MAX_CONVERSATIONS: usize = 1000;
/// Time for which conversations may continue after the signal.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

#[upshift::main]
async fn main() -> io::Result<()> {
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0"))?;
    println!("serving {}", listener.local_addr()?);
    if address.is_none() {
        let client = run_client(listener.local_addr()?);
        upshift::spawn(client, Priority::Inherit).detach();
    }

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let permits = Arc::new(Semaphore::new(MAX_CONVERSATIONS));
    let acceptor = upshift::spawn(accept(listener, permits.clone()), Priority::Inherit);
    let signal = signals.recv().await?;
    println!("signal {signal}: accepting no more");
    acceptor.cancel();
    // When the join returns, the listener is closed.
    let _ = acceptor.await;

    // Every conversation holds a permit, so all permits are free when all conversations have ended.
    let all_permits = permits.acquire_many(MAX_CONVERSATIONS as u32);
    match time::timeout(DRAIN_LIMIT, all_permits).await {
        Ok(_) => println!("all conversations have ended"),
        Err(_) => println!(
            "{} conversations are cut off",
            MAX_CONVERSATIONS - permits.available_permits()
        ),
    }
    Ok(())
}

async fn accept(listener: TcpListener, permits: Arc<Semaphore>) {
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let conversation = async move {
                    if let Err(error) = echo(stream).await {
                        eprintln!("{peer}: {error}");
                    }
                    drop(permit);
                };
                upshift::spawn(conversation, Priority::Inherit).detach();
            }
            // The error may be temporary: descriptors are free again when conversations end.
            Err(error) => {
                eprintln!("cannot accept: {error}");
                time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    loop {
        let data = stream.recv().await?;
        if data.is_empty() {
            return Ok(());
        }
        stream.write_all(data).await.0?;
    }
}

/// Runs a client that is in the middle of a conversation when the signal arrives.
async fn run_client(address: std::net::SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all("before").await.0?;
    println!(
        "client: {:?}",
        String::from_utf8_lossy(&stream.recv().await?)
    );
    let id = std::process::id().to_string();
    Command::new("kill").arg("-TERM").arg(id).status().await?;
    time::sleep(Duration::from_millis(50)).await;
    stream.write_all("after the signal").await.0?;
    println!(
        "client: {:?}",
        String::from_utf8_lossy(&stream.recv().await?)
    );
    Ok(())
}
