//! The spin server with one thread per connection.
//!
//! A thread reads, burns, replies, one request after the other; levels have no effect, the kernel shares the CPU among
//! connections. A reply leaves as soon as its request is done.

use super::accept::{Acceptor, Client};
use crate::Burner;
use crate::spin::{FRAME, Frames};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes read at a time.
const CHUNK: usize = 170 * FRAME;

/// The spin server with one thread per connection.
pub struct SpinServer {
    acceptor: Acceptor,
    burner: Burner,
}

impl SpinServer {
    /// Listens on `addrs`; port 0 picks a free one.
    ///
    /// # Errors
    ///
    /// An address is not available, or there is none.
    pub fn bind(addrs: &[SocketAddr], burner: Burner) -> io::Result<SpinServer> {
        let acceptor = Acceptor::bind("spin-server", addrs)?;
        Ok(SpinServer { acceptor, burner })
    }

    /// The addresses listened on, in the order given.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.acceptor.local_addrs()
    }

    /// Serves until `stop` is true, then ends all connections; see [`threads`](crate::threads).
    ///
    /// # Errors
    ///
    /// epoll fails, which means that the process is out of descriptors before it begins.
    pub fn serve(&self, stop: Arc<AtomicBool>) -> io::Result<()> {
        let burner = self.burner;
        self.acceptor.serve(&stop, move |client| {
            let client = Arc::new(client);
            let own = client.clone();
            client.thread(move || {
                if let Err(why) = converse(&own, &burner) {
                    own.log(why);
                    own.discard_input();
                }
            })
        })
    }
}

/// Serves until the input ends or is lost (both quiet), or holds what is not a request.
fn converse(client: &Client, burner: &Burner) -> Result<(), String> {
    let mut stream = &*client.stream;
    let mut input = vec![0; CHUNK];
    let mut frames = Frames::default();
    loop {
        let n = match stream.read(&mut input) {
            Ok(0) if frames.at_boundary() => return Ok(()),
            Ok(0) => return Err("the input ended in the middle of a frame".into()),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Ok(()),
        };
        let mut chunk = &input[..n];
        while let Some(request) = frames.next(&mut chunk).map_err(|e| e.to_string())? {
            burner.burn(request.service);
            if stream.write_all(&request.bytes()).is_err() {
                return Ok(());
            }
        }
    }
}
