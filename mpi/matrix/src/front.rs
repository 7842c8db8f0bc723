//! Serves TCP clients on rank 0, with a coroutine for each connection.
//!
//! A coroutine reads headers at level 0 (the most urgent), one header of fixed size at a time. Then
//! it takes the level of the request, and reads the matrix, computes and replies at this level.
//! After a rank has died, every request is answered with [`wire::UNAVAILABLE`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_lite::AsyncReadExt;
use upshift::net::{TcpListener, TcpStream};
use upshift::sync::Semaphore;
use upshift::{Level, get_cid, reprio, spawn};
use upshift_load::matrix::{HEADER, order};

use crate::job::Matrices;
use crate::wire::{self, header, parts};

/// Maximum number of connections; further connections wait to be accepted.
const MAX_CONNECTIONS: usize = 1024;

/// Serves clients until the future is dropped.
///
/// # Errors
/// Returns an error if accepting fails.
pub async fn serve(matrices: Matrices, listener: TcpListener) -> io::Result<()> {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = connections.clone().acquire_owned().await;
        let (stream, peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let matrices = matrices.clone();
        spawn(
            async move {
                // An error means that the client has gone.
                let _ = serve_connection(&matrices, stream, peer).await;
                drop(permit);
            },
            Level::at::<0>(),
        )
        .detach();
    }
}

fn set_level(level: Level) {
    if let Some(id) = get_cid() {
        // This cannot fail, since the calling coroutine is alive.
        let _ = reprio(id, level);
    }
}

async fn serve_connection(
    matrices: &Matrices,
    mut stream: TcpStream,
    peer: SocketAddr,
) -> io::Result<()> {
    let mut head = [0; HEADER];
    loop {
        set_level(Level::at::<0>());
        stream.read_exact(&mut head).await?;
        let (length, wire_level) = parts(head);
        let n = match order(length) {
            Ok(n) if wire_level < wire::LEVELS => n,
            Ok(_) => return refuse(&mut stream, "the level must be from 0 to 7").await,
            Err(error) => return refuse(&mut stream, &error.to_string()).await,
        };
        let level = matrices.levels().level(wire_level);
        if wire_level == 0 {
            matrices
                .world()
                .note_urgent(&format!("matrix of order {n} from {peer}"));
        }
        set_level(level);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await?;
        let result = match matrices.world().failure() {
            Some(error) => Err(error),
            None => matrices.square(wire_level, &payload, n).await,
        };
        match result {
            Ok(product) => reply(&mut stream, wire::OK, &product).await?,
            Err(error) => {
                reply(&mut stream, wire::UNAVAILABLE, error.to_string().as_bytes()).await?
            }
        }
    }
}

async fn refuse(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    reply(stream, wire::REFUSED, text.as_bytes()).await
}

async fn reply(stream: &mut TcpStream, status: u8, body: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(HEADER + body.len());
    frame.extend_from_slice(&header(body.len(), status));
    frame.extend_from_slice(body);
    stream.write_all(frame).await.0
}
