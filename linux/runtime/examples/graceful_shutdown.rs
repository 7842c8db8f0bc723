//! Graceful shutdown: on SIGTERM or Ctrl-C a server stops accepting, lets the conversations
//! under way end, and gives up on those that take longer than a limit. Running out of
//! descriptors does not end it: it waits a moment and accepts on.
//!
//! Without arguments a client of its own talks to it and the program sends itself a SIGTERM.
//! With an address it serves until a signal ends it:
//! `cargo run -p upshift --example graceful_shutdown -- 127.0.0.1:7000`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use upshift::net::{TcpListener, TcpStream};
use upshift::process::Command;
use upshift::signal::{SIGINT, SIGTERM, Signals};
use upshift::sync::Semaphore;
use upshift::{Priority, time};

/// Conversations at a time; more wait in the listener's queue.
const MOST: usize = 1000;
/// Time that conversations may last after the signal.
const PATIENCE: Duration = Duration::from_secs(5);

#[upshift::main]
async fn main() -> io::Result<()> {
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0"))?;
    println!("serving {}", listener.local_addr()?);
    if address.is_none() {
        let client = talk(listener.local_addr()?);
        upshift::spawn(client, Priority::Inherit).detach();
    }

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let running = Arc::new(Semaphore::new(MOST));
    let accepting = upshift::spawn(accept(listener, running.clone()), Priority::Inherit);
    let signal = signals.recv().await?;
    println!("signal {signal}: accepting no more");
    accepting.cancel();
    // The listener is gone when this returns.
    let _ = accepting.await;

    // Every conversation holds a permit: the task that has all of them is alone.
    let all = running.acquire_many(MOST as u32);
    match time::timeout(PATIENCE, all).await {
        Ok(_) => println!("all conversations have ended"),
        Err(_) => println!(
            "{} conversations are cut off",
            MOST - running.available_permits()
        ),
    }
    Ok(())
}

async fn accept(listener: TcpListener, running: Arc<Semaphore>) {
    loop {
        let Ok(permit) = running.clone().acquire_owned().await else {
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
            // Descriptors, for one, come back when conversations end.
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

/// A client that is in the middle of a conversation when the signal comes.
async fn talk(address: std::net::SocketAddr) -> io::Result<()> {
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
