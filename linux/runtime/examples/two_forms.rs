//! System calls in two forms: the server's coroutines await the asynchronous forms of accepting,
//! receiving and sending, and the clients, which are threads, make the same calls in their blocking
//! form. As in the SharedScheduler papers, both forms of a call have one name: a coroutine id as
//! the last argument makes the call asynchronous.
//!
//! Run it with `cargo run -p upshift --example two_forms`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use upshift::sys::{accept, connect, fsync, openat, recv, send, write};
use upshift::{Level, get_cid, spawn, spawn_blocking};

const CLIENTS: usize = 3;

/// Sends every line back in upper case, and writes it to the log.
async fn serve(connection: OwnedFd, log: OwnedFd) -> io::Result<()> {
    let cid = get_cid().expect("a coroutine has an id");
    let mut buffer = Vec::with_capacity(256);
    loop {
        let (count, line) = recv!(&connection, buffer, cid).await;
        if count? == 0 {
            return Ok(());
        }
        let (sent, line) = send!(&connection, line.to_ascii_uppercase(), cid).await;
        sent?;
        let (written, line) = write!(&log, line, cid).await;
        written?;
        fsync!(&log, cid).await?;
        buffer = line;
    }
}

/// Sends a line and returns the answer. Blocks its thread.
fn ask(server: SocketAddr, line: String) -> io::Result<Vec<u8>> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    connect!(&socket, server)?;
    send!(&socket, line).0?;
    let (count, answer) = recv!(&socket, Vec::with_capacity(256));
    count.map(|_| answer)
}

#[upshift::main(vcpus = 1)]
async fn main() -> io::Result<()> {
    let cid = get_cid().expect("a coroutine has an id");
    let path = std::env::temp_dir().join(format!("two-forms-{}.log", std::process::id()));
    let flags = libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND | libc::O_WRONLY;
    let log = openat!(None, &path, flags, 0o600, cid).await?;

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let clients: Vec<_> = (1..=CLIENTS)
        .map(|number| spawn_blocking(move || ask(address, format!("hello from client {number}\n"))))
        .collect();
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        let connection = accept!(&listener, cid).await?;
        connections.push(spawn(serve(connection, log.try_clone()?), Level::at::<8>()));
    }
    for client in clients {
        let answer = client.await.expect("the client panicked")?;
        print!("{}", String::from_utf8_lossy(&answer));
    }
    for connection in connections {
        connection.await.expect("the coroutine panicked")?;
    }
    println!("the log has {} bytes", std::fs::metadata(&path)?.len());
    std::fs::remove_file(&path)
}
