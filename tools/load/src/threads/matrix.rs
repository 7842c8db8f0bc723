//! The matrix server with three threads per connection: receive, compute, send.
//!
//! The threads are joined by two channels of [`QUEUE`] frames. A client that never reads fills the outgoing channel,
//! then the incoming one, then its own socket: memory is bounded by `2 * QUEUE` frames and the few in hand. When one
//! thread ends, its channel ends the next; frames received before the end of the input are still answered.

use super::accept::{Acceptor, Client};
use crate::matrix::{self, HEADER};
use std::io::{self, BufReader, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Frames that each of the two channels of a connection holds.
const QUEUE: usize = 16;
/// Bytes read or written at a time, at most, where frames are smaller.
const CHUNK: usize = 64 * 1024;

/// The matrix server with three threads per connection.
pub struct MatrixServer(Acceptor);

impl MatrixServer {
    /// Listens on `addrs`; port 0 picks a free one.
    ///
    /// # Errors
    ///
    /// An address is not available, or there is none.
    pub fn bind(addrs: &[SocketAddr]) -> io::Result<MatrixServer> {
        Acceptor::bind("matrix-server", addrs).map(MatrixServer)
    }

    /// The addresses listened on, in the order given.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.0.local_addrs()
    }

    /// Serves until `stop` is true, then ends all connections; see [`threads`](crate::threads).
    ///
    /// # Errors
    ///
    /// epoll fails, which means that the process is out of descriptors before it begins.
    pub fn serve(&self, stop: Arc<AtomicBool>) -> io::Result<()> {
        self.0.serve(&stop, start)
    }
}

/// A payload and its order.
type Request = (Vec<u8>, usize);

fn start(client: Client) -> io::Result<()> {
    let client = Arc::new(client);
    let (to_compute, from_receive) = sync_channel::<Request>(QUEUE);
    let (to_send, from_compute) = sync_channel::<Vec<u8>>(QUEUE);
    // If one cannot be started, the ends of its channels are dropped and the others end by themselves.
    let own = client.clone();
    client.thread(move || send(&own, &from_compute))?;
    let own = client.clone();
    client.thread(move || {
        compute(&from_receive, &to_send);
        drop(own);
    })?;
    let own = client.clone();
    client.thread(move || {
        if let Err(why) = receive(&own, &to_compute) {
            own.log(why);
            // What came before is answered meanwhile.
            drop(to_compute);
            own.discard_input();
        }
    })
}

/// Cuts the input into frames until it ends, is lost (both quiet), or holds something that is not a frame.
fn receive(client: &Client, frames: &SyncSender<Request>) -> Result<(), String> {
    let mut input = BufReader::with_capacity(CHUNK, &*client.stream);
    loop {
        let mut header = [0; HEADER];
        match input.read(&mut header[..1]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Ok(()),
        }
        if let Err(error) = input.read_exact(&mut header[1..]) {
            return cut(&error);
        }
        let len = u32::from_le_bytes(header);
        let n = matrix::order(len).map_err(|error| error.to_string())?;
        let len = len as usize;
        // Grows with what arrives, so that a length alone claims no memory.
        let mut payload = Vec::with_capacity(len.min(CHUNK));
        while payload.len() < len {
            let have = payload.len();
            payload.resize(len.min(have + CHUNK), 0);
            if let Err(error) = input.read_exact(&mut payload[have..]) {
                return cut(&error);
            }
        }
        if frames.send((payload, n)).is_err() {
            return Ok(());
        }
    }
}

fn cut(error: &io::Error) -> Result<(), String> {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Err("the input ended in the middle of a frame".into());
    }
    Ok(())
}

fn compute(frames: &Receiver<Request>, replies: &SyncSender<Vec<u8>>) {
    for (payload, n) in frames {
        let mut reply = Vec::with_capacity(HEADER + payload.len());
        matrix::square(&payload, n, &mut reply);
        if replies.send(reply).is_err() {
            return;
        }
    }
}

/// Writes replies; those that are waiting leave in one write.
fn send(client: &Client, replies: &Receiver<Vec<u8>>) {
    let mut output = &*client.stream;
    while let Ok(mut reply) = replies.recv() {
        while reply.len() < CHUNK {
            match replies.try_recv() {
                Ok(next) => reply.extend_from_slice(&next),
                Err(_) => break,
            }
        }
        if output.write_all(&reply).is_err() {
            // The reader must not go on filling queues for a peer that is gone.
            let _ = client.stream.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}
