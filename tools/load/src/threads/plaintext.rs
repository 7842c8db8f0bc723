//! The plaintext server with one thread per connection.
//!
//! A thread reads, answers all complete requests of what it has with one write, and reads again. Its buffers hold at
//! most one read and one incomplete request head, and the replies to them.

use super::accept::{Acceptor, Client};
use crate::http;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes read at a time.
const CHUNK: usize = 16 * 1024;

/// The plaintext server with one thread per connection.
pub struct PlaintextServer(Acceptor);

impl PlaintextServer {
    /// Listens on `addrs`; port 0 picks a free one.
    ///
    /// # Errors
    ///
    /// An address is not available, or there is none.
    pub fn bind(addrs: &[SocketAddr]) -> io::Result<PlaintextServer> {
        Acceptor::bind("plaintext-server", addrs).map(PlaintextServer)
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
        self.0.serve(&stop, |client| {
            let client = Arc::new(client);
            let own = client.clone();
            client.thread(move || converse(&own))
        })
    }
}

fn converse(client: &Client) {
    let mut stream = &*client.stream;
    let mut input = vec![0; CHUNK + http::MAX_HEAD];
    let mut output = Vec::with_capacity(4096);
    let mut filled = 0;
    loop {
        match stream.read(&mut input[filled..]) {
            Ok(0) => return,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        }
        let scan = http::answer(&input[..filled], &mut output);
        if !output.is_empty() {
            if stream.write_all(&output).is_err() {
                return;
            }
            output.clear();
        }
        if scan.close {
            let _ = stream.shutdown(Shutdown::Write);
            return client.discard_input();
        }
        input.copy_within(scan.consumed..filled, 0);
        filled -= scan.consumed;
    }
}
