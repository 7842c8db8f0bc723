//! UDP: a server that answers every datagram from the vCPU's own receive buffers (one operation for
//! all datagrams, and no copy), and a client that repeats a question when the answer does not come
//! in time.
//!
//! Run it with `cargo run -p upshift --example udp`.

use std::io;
use std::time::Duration;

use upshift::net::UdpSocket;
use upshift::{Priority, time};

/// Number of datagrams of which the server ignores one, as if the network had lost it.
const LOSS_INTERVAL: u32 = 3;

#[upshift::main]
async fn main() -> io::Result<()> {
    let server = UdpSocket::bind("127.0.0.1:0")?;
    let address = server.local_addr()?;
    upshift::spawn(serve(server), Priority::Inherit).detach();

    let client = UdpSocket::bind("127.0.0.1:0")?;
    client.connect(address).await?;
    for question in ["one", "two", "three", "four"] {
        let (answer, tries) = ask(&client, question).await?;
        println!("{question} → {answer} after {tries} tries");
    }
    Ok(())
}

async fn ask(client: &UdpSocket, question: &str) -> io::Result<(String, u32)> {
    let mut buffer = [0; 1500];
    for tries in 1..=10 {
        client.send(question.as_bytes()).await?;
        let answer = time::timeout(Duration::from_millis(50), client.recv(&mut buffer));
        if let Ok(count) = answer.await {
            let text = String::from_utf8_lossy(&buffer[..count?]).into_owned();
            return Ok((text, tries));
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
}

async fn serve(socket: UdpSocket) -> io::Result<()> {
    let mut datagrams = socket.datagrams();
    let mut datagram_count = 0;
    loop {
        let datagram = datagrams.next().await?;
        datagram_count += 1;
        if datagram_count % LOSS_INTERVAL != 0 {
            let answer = datagram.data.to_ascii_uppercase();
            socket.send_to(&answer, datagram.from).await?;
        }
    }
}
