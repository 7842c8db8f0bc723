//! Accepting connections, keeping count of them, and ending them all.
//!
//! The register holds one reference to each open socket, so that stopping can shut it down; the thread that lets go of
//! a connection last removes it. Accepting costs two system calls and one lock.

use crate::os::{self, Epoll};
use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Stack of each thread, in bytes.
const STACK: usize = 128 * 1024;
/// How long `serve` waits for the threads of connections.
const GRACE: Duration = Duration::from_secs(2);
/// How soon `stop` is seen.
const NAP: Duration = Duration::from_millis(20);
/// The pause after an accept that failed.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Bound sockets, and how to serve a connection.
pub(super) struct Acceptor {
    name: &'static str,
    listeners: Vec<TcpListener>,
    addrs: Vec<SocketAddr>,
}

/// The open connections of a server.
#[derive(Default)]
pub(super) struct Register {
    open: Mutex<HashMap<u64, Arc<TcpStream>>>,
    closed: Condvar,
}

/// One connection; shared by its threads and closed when the last lets go.
pub(super) struct Client {
    pub(super) stream: Arc<TcpStream>,
    pub(super) peer: SocketAddr,
    name: &'static str,
    id: u64,
    register: Arc<Register>,
}

impl Acceptor {
    pub(super) fn bind(name: &'static str, addrs: &[SocketAddr]) -> io::Result<Acceptor> {
        if addrs.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "nothing to listen on: give at least one address",
            ));
        }
        let mut listeners = Vec::new();
        let mut bound = Vec::new();
        for &addr in addrs {
            let listener = listen(addr).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}"))
            })?;
            bound.push(listener.local_addr()?);
            listeners.push(listener);
        }
        Ok(Acceptor {
            name,
            listeners,
            addrs: bound,
        })
    }

    pub(super) fn local_addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Accepts until `stop`, giving each connection to `start`, then ends all connections.
    pub(super) fn serve(
        &self,
        stop: &AtomicBool,
        start: impl Fn(Client) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut epoll = Epoll::new(self.listeners.len())?;
        for (i, listener) in self.listeners.iter().enumerate() {
            epoll.add(listener, i as u64, os::READABLE)?;
        }
        let register = Arc::new(Register::default());
        let mut next_id = 0;
        let mut trouble = None;
        while !stop.load(Ordering::Relaxed) {
            let n = epoll.wait(NAP)?;
            for i in 0..n {
                let listener = &self.listeners[epoll.ready(i).token as usize];
                next_id += 1;
                match self.accept(listener, next_id, &register, &start) {
                    Ok(()) => trouble = None,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) if gone_before_accepted(&error) => {}
                    Err(error) => {
                        // Said once per kind of trouble: it lasts, and every turn meets it again.
                        if trouble != Some(error.kind()) {
                            trouble = Some(error.kind());
                            eprintln!(
                                "{}: cannot take a connection ({error}): trying again every {BACK_OFF:?}; \
                                 raise ulimit -n or -u, or close connections",
                                self.name
                            );
                        }
                        std::thread::sleep(BACK_OFF);
                    }
                }
            }
        }
        register.end_all();
        Ok(())
    }

    fn accept(
        &self,
        listener: &TcpListener,
        id: u64,
        register: &Arc<Register>,
        start: &impl Fn(Client) -> io::Result<()>,
    ) -> io::Result<()> {
        let (stream, peer) = listener.accept()?;
        stream.set_nodelay(true)?;
        let stream = Arc::new(stream);
        register.lock().insert(id, stream.clone());
        start(Client {
            stream,
            peer,
            name: self.name,
            id,
            register: register.clone(),
        })
    }
}

/// A listening socket with a queue long enough for a thousand clients at once.
fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(4096)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn gone_before_accepted(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
    )
}

impl Register {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<TcpStream>>> {
        // A panicking thread cannot leave a map half-changed that matters here.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shuts every connection down and waits for their threads.
    fn end_all(&self) {
        let mut open = self.lock();
        for stream in open.values() {
            // It may be gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let deadline = Instant::now() + GRACE;
        while !open.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return;
            };
            let waited = self.closed.wait_timeout(open, left);
            open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Client {
    /// Runs `body` on a thread of its own.
    pub(super) fn thread(&self, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        std::thread::Builder::new()
            .name(self.name.into())
            .stack_size(STACK)
            .spawn(body)
            .map(drop)
    }

    /// Reads and drops some more input before a connection is closed for what its client sent.
    ///
    /// Closing a socket that holds unread input resets the connection and may take the last replies with it. Bounded:
    /// at most 64 reads and 200 ms of silence.
    pub(super) fn discard_input(&self) {
        let silence = Some(Duration::from_millis(200));
        if self.stream.set_read_timeout(silence).is_err() {
            return;
        }
        let mut dropped = [0; 4096];
        for _ in 0..64 {
            if !matches!((&*self.stream).read(&mut dropped), Ok(n) if n > 0) {
                return;
            }
        }
    }

    /// Says why this connection is being closed.
    pub(super) fn log(&self, why: impl std::fmt::Display) {
        eprintln!("{}: closed {}: {why}", self.name, self.peer);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Says goodbye at once even if a clone of the socket lives a moment longer in the register.
        let _ = self.stream.shutdown(Shutdown::Write);
        self.register.lock().remove(&self.id);
        self.register.closed.notify_all();
    }
}
