//! Tests of the time-outs for a peer, and of the resources of a connection after a time-out.

use alloc::format;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

use os_abi::Error;
use smoltcp::time::Duration;

use super::super::table::Key;
use super::super::{NET, ORPHAN_TIMEOUT, STALL_TIMEOUT, Socket};
use super::{PORT, SELF, check_no_leak, connected, in_use, inject, streams, wait};
use crate::process::share::machine;
use crate::selftest::{Outcome, is_icount};
use crate::sleep::sleep_until;
use crate::{chaos, clock, ensure, executor};

/// Returns a connection whose send and receive buffers are full, because its reading end reads
/// nothing. The frames of that end are tapped.
async fn stuck_connection() -> Result<(Socket, Socket), alloc::string::String> {
    let (listener, client, server) = connected(PORT).await?;
    drop(listener);
    let fill = |_: usize, to: &mut [u8]| {
        to.fill(1);
        Ok(())
    };
    let mut written = 0;
    for _ in 0..100 {
        match client.write(1000, false, fill) {
            Some(count) => written += count.map_err(|error| format!("{error}"))?,
            None => wait(1_000).await,
        }
    }
    // The send buffer of the writer, and the receive buffer of the reader.
    ensure!(written == 2 * 4096, "{written} bytes were written");
    NET.get().lock().link.tap = Some((PORT, Vec::new()));
    Ok((client, server))
}

/// If the window stays 0, the writer learns that the peer is gone, even if the peer sends frames.
pub(crate) async fn window_that_stays_closed_ends_the_writer() -> Outcome {
    if !minutes_take_no_time() {
        return Ok(());
    }
    let before = in_use().await;
    let (client, server) = stuck_connection().await?;
    let start = clock::now();
    client.writable().await;
    let written = client.write(1, false, |_, _| Ok(()));
    ensure!(written == Some(Err(Error::BrokenPipe)), "{written:?}");
    ensure!(
        took_about(start, STALL_TIMEOUT),
        "not after {STALL_TIMEOUT}"
    );
    NET.get().lock().link.tap = None;
    drop((client, server));
    check_no_leak(before).await
}

/// Like the test above, without the writer: no resources are kept for a peer that repeats its last
/// frame every second for ever.
pub(crate) async fn window_that_stays_closed_keeps_nothing() -> Outcome {
    if !minutes_take_no_time() {
        return Ok(());
    }
    let before = in_use().await;
    let (client, server) = stuck_connection().await?;
    // Wait until the peer is probed for space.
    wait(5_000_000).await;
    let tap = NET.get().lock().link.tap.take();
    let last_frame = tap.ok_or("no frame is tapped")?.1;
    ensure!(Key::of(&last_frame).is_some(), "the peer has sent no frame");
    let start = clock::now();
    drop(client);
    for _ in 0..100 {
        if streams() == 1 {
            break;
        }
        inject(&last_frame).await;
        wait(1_000_000).await;
    }
    ensure!(streams() == 1, "{} sockets are left", streams());
    ensure!(
        took_about(start, ORPHAN_TIMEOUT),
        "not after {ORPHAN_TIMEOUT}"
    );
    // The reader must have been notified.
    server.readable().await;
    let sent = server.write(1, false, |_, _| Ok(()));
    ensure!(sent == Some(Err(Error::BrokenPipe)), "{sent:?}");
    drop((server, last_frame));
    check_no_leak(before).await
}

/// Returns whether a wait of minutes costs no real time. True only where time counts instructions,
/// and without devices, because QEMU serves devices 10,000 times a second.
fn minutes_take_no_time() -> bool {
    is_icount() && NET.get().lock().link.card.is_none()
}

/// Returns whether about `limit` has passed since `start`: at most 100 ms less, and less than two
/// seconds more.
fn took_about(start: u64, limit: Duration) -> bool {
    let micros = (clock::now() - start) / clock::from_micros(1);
    let limit = limit.total_micros();
    (limit - 100_000..limit + 2_000_000).contains(&micros)
}

/// A connection whose peer is slow, but makes progress, stays open.
pub(crate) async fn slow_reader_is_not_gone() -> Outcome {
    if !minutes_take_no_time() {
        return Ok(());
    }
    let before = in_use().await;
    let (listener, client, server) = connected(PORT).await?;
    let mut read = 0;
    for _ in 0..8 {
        while client.write(1000, false, |_, _| Ok(())).is_some() {
            wait(1_000).await;
        }
        wait(STALL_TIMEOUT.total_micros() * 3 / 4).await;
        let count = server.read(usize::MAX, |_, _| Ok(()));
        read += count.unwrap_or(Ok(0)).map_err(|error| format!("{error}"))?;
        wait(1_000_000).await;
    }
    let sent = client.write(1, false, |_, _| Ok(()));
    ensure!(sent == Some(Ok(1)), "{sent:?} after {read} bytes");
    drop((listener, client, server));
    check_no_leak(before).await
}

/// An end resets the connection in each state that the other end may have.
pub(crate) async fn resets_leave_nothing_behind() -> Outcome {
    let before = in_use().await;
    for state in 0..6 {
        let (listener, client, server) = connected(PORT).await?;
        let fill = |_: usize, to: &mut [u8]| {
            to.fill(1);
            Ok(())
        };
        match state {
            // Established, with and without bytes to send.
            0 => {}
            1 => ensure!(client.write(4096, true, fill).is_some(), "no space"),
            // FIN-WAIT, CLOSE-WAIT, and both.
            2 => client
                .shutdown(executor::level())
                .map_err(|error| format!("{error}"))?,
            3 => server
                .shutdown(executor::level())
                .map_err(|error| format!("{error}"))?,
            4 => {
                ensure!(client.write(4096, true, fill).is_some(), "no space");
                client
                    .shutdown(executor::level())
                    .map_err(|error| format!("{error}"))?;
                server
                    .shutdown(executor::level())
                    .map_err(|error| format!("{error}"))?;
            }
            // A connection that is not accepted.
            _ => {
                let pending = Socket::stream(&machine());
                ensure!(pending.connect(SELF, PORT).await.is_ok(), "no connection");
                drop(pending);
            }
        }
        if state % 2 == 0 {
            wait(1_000).await;
        }
        // A connection closed with unread bytes is reset.
        ensure!(
            state == 2 || state == 4 || client.write(1, false, fill).is_some() || state == 1,
            "state {state}: no space"
        );
        wait(1_000).await;
        drop(server);
        client.readable().await;
        drop((client, listener));
    }
    check_no_leak(before).await
}

/// 10.0.2.99: an address without a host on the card's network, and without a route if there is no
/// card. A router would report the address as unreachable, and the call would not wait.
const NOWHERE: u32 = 0x0a00_0263;

/// A socket that waits for the clock is served although there is no memory for the alarm.
pub(crate) async fn alarm_that_found_no_memory_is_set_later() -> Outcome {
    let before = in_use().await;
    let mut pause = pin!(sleep_until(clock::now() + clock::from_micros(20_000)));
    let socket = Socket::stream(&machine());
    let refusals = {
        // The call waits until the end, so that the network runs at its level.
        let mut connecting = pin!(socket.connect(NOWHERE, PORT));
        let is_waiting = poll_fn(|cx| {
            // The timer of the test is set before timers find no memory.
            let _ = pause.as_mut().poll(cx);
            Poll::Ready(connecting.as_mut().poll(cx).is_pending())
        });
        ensure!(is_waiting.await, "the call does not wait");
        // The sender finds no route to the peer, so the socket must be served by the clock.
        chaos::refuse_memory(1);
        pause.await;
        // If an alarm was set before, the next alarm finds no memory.
        let until = clock::now() + clock::from_micros(5_000_000);
        while chaos::refusals_left() != 0 && clock::now() < until {
            executor::yield_now().await;
        }
        let refusals = chaos::refusals_left();
        chaos::refuse_memory(0);
        refusals
    };
    ensure!(refusals == 0, "no alarm was set");
    let ended = socket.shutdown(executor::level());
    ended.map_err(|error| format!("{error}"))?;
    drop(socket);
    check_no_leak(before).await
}
