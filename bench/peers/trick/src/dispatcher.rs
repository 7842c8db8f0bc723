//! The thread that handles the sockets and lets the workers run in turn.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering::SeqCst;

use bench_kit::server::READ_BYTES;
use rustix::event::{Timespec, epoll};
use upshift_load::spin::Frames;

use crate::{QUANTUM_NS, Shared, WORKERS, lock, worker};

/// Key of the listener in epoll events; the other keys are the numbers of connections.
const LISTENER: u64 = u64::MAX;

struct Connection {
    stream: TcpStream,
    frames: Frames,
    /// Bytes that the socket has not accepted yet.
    output: Vec<u8>,
}

/// Serves until an error occurs, and returns that error.
pub(crate) fn run(shared: &Shared, listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let watch = |source: &dyn std::os::fd::AsFd, key: u64| {
        epoll::add(
            &events,
            source.as_fd(),
            epoll::EventData::new_u64(key),
            epoll::EventFlags::IN,
        )
    };
    watch(listener, LISTENER)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut ready = Vec::with_capacity(256);
    loop {
        let is_idle = !shared.workers.iter().any(worker::Worker::is_busy)
            && connections.iter().flatten().all(|c| c.output.is_empty());
        let no_wait = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        ready.clear();
        let event_buffer = rustix::buffer::spare_capacity(&mut ready);
        match epoll::wait(
            &events,
            event_buffer,
            if is_idle { None } else { Some(&no_wait) },
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &ready {
            let key = event.data.u64();
            if key == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    watch(&stream, connections.len() as u64)?;
                    connections.push(Some(Connection {
                        stream,
                        frames: Frames::default(),
                        output: Vec::new(),
                    }));
                }
            } else if let Some(slot) = connections.get_mut(key as usize)
                && let Some(connection) = slot
                && !receive(shared, key as usize, connection)
            {
                *slot = None;
            }
        }
        run_workers(shared);
        let served = std::mem::take(&mut *lock(&shared.served));
        for (key, request) in served {
            if let Some(Some(connection)) = connections.get_mut(key) {
                connection.output.extend_from_slice(&request.bytes());
            }
        }
        for connection in connections.iter_mut().flatten() {
            send(connection);
        }
        shared.current.store(WORKERS, SeqCst);
    }
}

/// Receives requests; returns whether the connection stays open.
fn receive(shared: &Shared, key: usize, connection: &mut Connection) -> bool {
    let mut requests = lock(&shared.requests);
    let max_requests = WORKERS.saturating_sub(requests.len());
    let mut input = [0; READ_BYTES];
    let max_bytes = READ_BYTES.min(max_requests * upshift_load::spin::FRAME);
    if max_bytes == 0 {
        return true;
    }
    match connection.stream.read(&mut input[..max_bytes]) {
        Ok(0) => false,
        Ok(count) => {
            let mut chunk = &input[..count];
            loop {
                match connection.frames.next(&mut chunk) {
                    Ok(Some(request)) => requests.push_back((key, request)),
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
        }
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// Starts an idle worker if requests wait, then resumes each preempted worker for a slice
/// ([`QUANTUM_NS`]).
fn run_workers(shared: &Shared) {
    let has_requests = !lock(&shared.requests).is_empty();
    let mut workers = shared.workers.iter().enumerate();
    if has_requests && let Some((number, idle)) = workers.find(|(_, worker)| !worker.is_busy()) {
        shared.current.store(number, SeqCst);
        idle.start();
    }
    for (number, worker) in shared.workers.iter().enumerate() {
        if worker.is_busy() {
            shared.current.store(number, SeqCst);
            worker::set_timer(&shared.timer, QUANTUM_NS);
            worker.resume();
        }
    }
}

fn send(connection: &mut Connection) {
    while !connection.output.is_empty() {
        match connection.stream.write(&connection.output) {
            Ok(sent) => drop(connection.output.drain(..sent)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // The next `receive` on this connection notices the failure.
            Err(_) => connection.output.clear(),
        }
    }
}
