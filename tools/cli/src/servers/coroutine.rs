//! Code that all coroutine servers share: creates the runtime, listens, accepts connections, and
//! ends on a signal.
//!
//! The main coroutine has level 0, the most urgent one, so that SIGTERM is obeyed under any load.
//! Each address has a coroutine that accepts connections at their level. At overload, background
//! connections therefore wait to be accepted, just as their requests wait to be served. When the
//! main coroutine returns, dropping the runtime cancels all other coroutines and their I/O.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::time::Duration;
use std::{io, process};

use anyhow::{Context, Result};
use upshift::net::{OwnedReadHalf, TcpListener, TcpSocket, TcpStream};
use upshift::signal::Signal;
use upshift::{Level, Preemption, Runtime, time};

use super::args::ServerArgs;
use super::listening::{announce, bind_advice};
use crate::choice::Switch;
use crate::values::Listen;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4096;
/// Pause after a failed accept.
const BACK_OFF: Duration = Duration::from_millis(50);

/// An accepted connection.
pub(super) struct Client {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) level: Level,
}

/// Serves until a signal arrives; `serve` starts the coroutines of a connection.
pub(super) fn run(
    name: &'static str,
    args: &ServerArgs,
    serve: impl Fn(Client) + Copy + Send + 'static,
) -> Result<()> {
    let vcpus = args.vcpus.unwrap_or(args.pin.len().max(1));
    let pins = args.pin.iter().copied().cycle().take(vcpus);
    let mut builder = Runtime::builder()
        .driver(args.driver.into())
        .observe(args.observe);
    if args.scheduling.preempt == Switch::On {
        // If preemption is not permitted, the runtime reports the missing privilege and works
        // without preemption.
        builder = builder.preemption(Preemption::Preferred);
    }
    if let Some(quantum) = args.scheduling.quantum {
        builder = builder.quantum(quantum);
    }
    let runtime = builder
        .board(args.scheduling.board.into())
        .vcpus(vcpus)
        .pin(pins.collect::<Vec<_>>())
        .main_level(Level::at::<0>())
        .name(name)
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut signals = [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT]
            .map(Signal::new)
            .into_iter()
            .collect::<io::Result<Vec<Signal>>>()
            .context("cannot handle SIGTERM and Ctrl-C")?;
        let mut addresses = Vec::with_capacity(args.listen.len());
        for &Listen { address, level } in &args.listen {
            let listener = listen(address).map_err(|error| {
                let text = format!("cannot listen on {address}: {error}");
                bind_advice(io::Error::new(error.kind(), text))
            })?;
            addresses.push(listener.local_addr()?);
            let level = Level::new(level.unwrap_or(args.level))
                .with_context(|| format!("invalid level of {address}"))?;
            upshift::spawn(accept(name, listener, level, serve), level).detach();
        }
        announce(addresses)?;
        any_signal(&mut signals)
            .await
            .context("cannot wait for SIGTERM and Ctrl-C")
    })?;
    let stats = runtime.handle().preemption_stats();
    if stats.vcpus != 0 {
        eprintln!(
            "{name}: {} polls interrupted; {} looks, {} of them for nothing; {} system calls by a suspended thread",
            stats.suspensions, stats.wakeups, stats.spurious_wakeups, stats.services
        );
    }
    let board = runtime.handle().board_stats();
    if board.joined {
        eprintln!(
            "{name}: on the board; {} rings, {} announcements, gave way {} times",
            board.rings, board.announced, board.gave_way
        );
    }
    Ok(())
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() {
        TcpSocket::new_v6()
    } else {
        TcpSocket::new_v4()
    }?;
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn any_signal(signals: &mut [Signal]) -> io::Result<()> {
    let mut waits: Vec<_> = signals
        .iter_mut()
        .map(|signal| Box::pin(signal.recv()))
        .collect();
    poll_fn(|cx| {
        for wait in &mut waits {
            if let std::task::Poll::Ready(result) = wait.as_mut().poll(cx) {
                return std::task::Poll::Ready(result);
            }
        }
        std::task::Poll::Pending
    })
    .await
}

async fn accept(
    name: &'static str,
    listener: TcpListener,
    level: Level,
    serve: impl Fn(Client) + Copy + Send + 'static,
) {
    let mut reported_error = None;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                reported_error = None;
                // A closed socket reports its state when it is read.
                let _ = stream.set_nodelay(true);
                serve(Client {
                    stream,
                    peer,
                    level,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // The error is reported once per kind, since every iteration meets it again.
                if reported_error != Some(error.kind()) {
                    reported_error = Some(error.kind());
                    eprintln!(
                        "{name}[{}]: cannot take a connection ({error}): trying again every {BACK_OFF:?}; \
                         raise ulimit -n, or close connections",
                        process::id()
                    );
                }
                time::sleep(BACK_OFF).await;
            }
        }
    }
}

/// Reads and drops some more input before a connection is closed for its invalid input. Closing a
/// socket that holds unread input resets the connection and may discard the last replies. Reads at
/// most 64 times, and ends after 200 ms of silence.
pub(super) async fn discard(input: &mut OwnedReadHalf) {
    for _ in 0..64 {
        match time::timeout(Duration::from_millis(200), input.recv()).await {
            Ok(Ok(data)) if !data.is_empty() => {}
            _ => return,
        }
    }
}
