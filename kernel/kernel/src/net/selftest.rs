//! Tests of the network inside the kernel: state that no program can see, and frames that no
//! well-behaved machine sends. Frames arrive through the loopback.

mod card;
mod frames;
mod hostile;
mod pace;
mod patience;

use alloc::format;
use alloc::vec::Vec;

use smoltcp::wire::{IpEndpoint, TcpControl};
use upshift_core::Level;

use super::checksum;
use super::endpoint::endpoint;
use super::table::{Key, Kind};
use super::{NET, SILENCE_TIMEOUT, Socket};
use crate::memory::heap;
use crate::process::share::machine;
use crate::selftest::{Outcome, is_icount};
use crate::sleep::sleep_until;
use crate::{clock, ensure, executor};
pub(crate) use card::{card_interrupts_only_when_needed, polled_card_interrupts_less};
use frames::{address, datagram, echo_request, segment};
pub(crate) use hostile::{
    frames_that_are_too_long_are_dropped, garbage_harms_nothing, spoofed_frames_are_recognized,
    syn_flood_keeps_no_client_out,
};
pub(crate) use pace::{
    acknowledgements_wake_no_reader, answers_acknowledge_requests, small_reads_make_room,
};
pub(crate) use patience::{
    alarm_that_found_no_memory_is_set_later, resets_leave_nothing_behind, slow_reader_is_not_gone,
    window_that_stays_closed_ends_the_writer, window_that_stays_closed_keeps_nothing,
};

const SELF: u32 = 0x7f00_0001;
/// The first of a few ports that only these tests use.
const PORT: u16 = 700;

/// Injects a frame; yields while the loopback is full.
async fn inject(frame: &[u8]) {
    loop {
        {
            let mut stack = NET.get().lock();
            let injected = stack.link.inject(frame);
            stack.wake_if_needed();
            if injected {
                return;
            }
        }
        yield_to_network().await;
    }
}

/// Yields to the coroutine of the network, which is less urgent than the tests.
async fn yield_to_network() {
    sleep_until(clock::now() + clock::from_micros(100)).await;
}

async fn wait(micros: u64) {
    sleep_until(clock::now() + clock::from_micros(micros)).await;
}

/// Interval at which closed connections are polled, at most [`MAX_POLLS`] times, because a silent
/// connection is reset only after [`SILENCE_TIMEOUT`]. Polls are counted instead of timed, because
/// a host may stop the machine for longer.
const POLL_MICROS: u64 = 20_000;
/// Maximum number of these polls.
const MAX_POLLS: u64 = 6 * SILENCE_TIMEOUT.total_micros() / POLL_MICROS;

/// Returns the number of connections, including those without an owner.
fn streams() -> usize {
    let stack = NET.get().lock();
    let is_stream = |index: &u16| stack.table.kind_of(*index) == Some(Kind::Stream);
    (0..super::SOCKETS as u16).filter(is_stream).count()
}

/// Returns the numbers of free pages and of allocated bytes of the heap, after all frames have
/// arrived and all connections of earlier tests have ended.
async fn in_use() -> (usize, usize) {
    for _ in 0..MAX_POLLS {
        wait(POLL_MICROS).await;
        if streams() == 0 {
            break;
        }
    }
    (heap::free_pages(), heap::in_use())
}

/// Checks that no more resources are in use than before, after all connections have ended.
async fn check_no_leak(before: (usize, usize)) -> Outcome {
    let is_released = |after: (usize, usize)| after.0 >= before.0 && after.1 <= before.1;
    let mut after = in_use().await;
    for _ in 0..MAX_POLLS {
        if is_released(after) || streams() != 0 {
            break;
        }
        after = in_use().await;
    }
    let left = streams();
    ensure!(left == 0, "{left} sockets remain");
    ensure!(
        is_released(after),
        "free pages and bytes of the heap: {before:?} before, {after:?} after"
    );
    Ok(())
}

/// Creates a listener and both ends of a connection to it.
async fn connected(port: u16) -> Result<(Socket, Socket, Socket), alloc::string::String> {
    let text = |error: os_abi::Error| format!("{error}");
    let listener = Socket::stream(&machine());
    listener.bind(port).map_err(text)?;
    listener.listen(4).map_err(text)?;
    let client = Socket::stream(&machine());
    client.connect(SELF, port).await.map_err(text)?;
    let server = listener.accept().await.map_err(text)?;
    Ok((listener, client, server))
}

async fn check_connection(port: u16) -> Outcome {
    let (_listener, client, server) = connected(port).await?;
    let put = |_, to: &mut [u8]| {
        to.fill(7);
        Ok(())
    };
    ensure!(
        client.write(5, true, put) == Some(Ok(5)),
        "the connection does not accept bytes"
    );
    server.readable().await;
    let mut seen = 0;
    let count = server.read(100, |_, bytes| {
        seen += bytes.iter().filter(|byte| **byte == 7).count();
        Ok(())
    });
    ensure!(
        count == Some(Ok(5)) && seen == 5,
        "{count:?} read, {seen} of them expected"
    );
    Ok(())
}

/// If sockets of several levels have frames to send, the frames leave in the order of the levels.
pub(crate) async fn more_urgent_socket_sends_first() -> Outcome {
    // Resolves the machine's own address.
    check_connection(PORT).await?;
    wait(20_000).await;
    let levels = [40, 10, 50, 20].map(|level| Level::new(level).expect("a level"));
    let mut seen = Vec::new();
    let sockets = {
        let mut stack = NET.get().lock();
        let mut sockets = Vec::new();
        for level in levels {
            let index = stack
                .add_datagrams(&machine(), 0)
                .map_err(|error| format!("{error}"))?;
            for _ in 0..2 {
                let to = IpEndpoint::new(address(SELF), PORT + 1);
                let mut endpoint = endpoint(index);
                let bytes = endpoint.udp().send(4, to);
                bytes.expect("the buffer has space").fill(level.get());
            }
            stack.add_work(index, level);
            sockets.push(index);
        }
        while stack.send_frame() {}
        while let Some(frame) = stack.link.take() {
            // Skip frames from the card.
            if Key::of(frame.bytes()).is_some_and(|key| key.port == PORT + 1) {
                seen.extend(frame.bytes().last().copied());
            }
            stack.link.give_back(frame);
        }
        sockets
    };
    let mut stack = NET.get().lock();
    for index in sockets {
        stack.orphan(index, executor::LEAST_URGENT_WORK);
    }
    ensure!(
        seen == [10, 10, 20, 20, 40, 40, 50, 50],
        "sent in the order of levels {seen:?}"
    );
    Ok(())
}

/// A frame takes as many instructions beside 900 other sockets as beside none.
pub(crate) async fn idle_sockets_cost_nothing() -> Outcome {
    const FRAMES: usize = 64;
    if !is_icount() {
        return Ok(());
    }
    let socket = Socket::datagrams(&machine());
    socket.bind(PORT).map_err(|error| format!("{error}"))?;
    let frame = datagram((SELF + 1, 9), PORT, b"x");
    let ticks = || {
        let mut ticks = 0;
        for _ in 0..FRAMES {
            let mut stack = NET.get().lock();
            stack.link.inject(&frame);
            let start = clock::now();
            let handled = stack.take_frame();
            ticks += clock::now() - start;
            assert!(handled);
            drop(stack);
            socket.receive_from(|_, _, bytes| Ok(bytes.len()));
        }
        ticks
    };
    ticks();
    let alone = ticks();
    let mut idle = Vec::new();
    for _ in 0..900 {
        let socket = Socket::datagrams(&machine());
        socket.bind(0).map_err(|error| format!("{error}"))?;
        idle.push(socket);
    }
    let beside = ticks();
    crate::println!(
        "figure: frame to a socket, alone and beside 900: {} {}",
        alone * 100 / FRAMES as u64,
        beside * 100 / FRAMES as u64
    );
    // Only the sockets of the frame's bucket are examined, one or two, so a tenth is a margin.
    ensure!(
        beside * 10 <= alone * 11,
        "{beside} ticks beside 900 sockets, {alone} ticks alone"
    );
    Ok(())
}

/// Bytes that a socket has written at once are sent together, before the bytes of another socket of
/// its level.
pub(crate) async fn bytes_written_together_are_sent_together() -> Outcome {
    let before = in_use().await;
    let first = connected(PORT).await?;
    let second = connected(PORT + 1).await?;
    wait(20_000).await;
    let order = {
        let mut stack = NET.get().lock();
        let all = 0..super::SOCKETS as u16;
        let is_client = |index: &u16| {
            stack.table.kind_of(*index) == Some(Kind::Stream)
                && endpoint(*index)
                    .tcp()
                    .remote_endpoint()
                    .is_some_and(|peer| (PORT..PORT + 2).contains(&peer.port))
        };
        let clients: Vec<u16> = all.filter(is_client).collect();
        ensure!(clients.len() == 2, "{} connections", clients.len());
        for index in clients {
            let sent = endpoint(index).tcp().send_slice(&[7; 4_000]);
            ensure!(sent == Ok(4_000), "{sent:?}");
            stack.update_socket(index);
        }
        let mut order = Vec::new();
        while stack.send_frame() {
            while let Some(frame) = stack.link.take() {
                // Skip frames that announce space.
                let to = Key::of(frame.bytes()).map(|key| key.port);
                order.extend(to.filter(|port| (PORT..PORT + 2).contains(port)));
                stack.link.give_back(frame);
            }
        }
        order
    };
    let count = |port| order.iter().filter(|other| **other == port).count();
    let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    // 4,000 bytes fill three frames, and the second socket sends after the first.
    ensure!(
        (count(PORT), count(PORT + 1), changes) == (3, 3, 1),
        "frames to {order:?}"
    );
    drop((first, second, order));
    check_no_leak(before).await
}

/// The checksums equal those of `smoltcp`, and a damaged frame is detected.
pub(crate) async fn checksums_are_right() -> Outcome {
    let from = (SELF + 5, 1234);
    for len in 0..70 {
        let data: Vec<u8> = (0..len).map(|at| (at * 37 + len) as u8).collect();
        let mut frames = Vec::from([
            segment(from, PORT, TcpControl::None, true, &data),
            datagram(from, PORT, &data),
            echo_request(SELF + 5, 42 + len),
        ]);
        for frame in &mut frames {
            ensure!(
                checksum::is_valid(frame),
                "{frame:?} is reported as damaged"
            );
            let expected = frame.clone();
            checksum::fill(frame);
            ensure!(*frame == expected, "{frame:?} instead of {expected:?}");
            // Addresses of Ethernet have no checksum, and a changed length would truncate the
            // frame.
            for at in [22, 26, 33, frame.len() - 1] {
                frame[at] ^= 0x10;
                ensure!(
                    !checksum::is_valid(frame),
                    "changed byte {at} of {frame:?} is reported as valid"
                );
                frame[at] ^= 0x10;
            }
        }
    }
    Ok(())
}

/// Writes three parts, which leave in a frame each, and returns the frames, which do not arrive.
fn sent_in_parts(parts: [&[u8]; 3]) -> Vec<Vec<u8>> {
    let mut stack = NET.get().lock();
    let is_sender = |index: &u16| {
        stack.table.kind_of(*index) == Some(Kind::Stream)
            && (endpoint(*index).tcp().remote_endpoint()).is_some_and(|peer| peer.port == PORT)
    };
    let sender = (0..super::SOCKETS as u16).find(is_sender);
    let sender = sender.expect("a connection");
    let mut frames = Vec::new();
    for part in parts {
        let sent = endpoint(sender).tcp().send_slice(part);
        assert_eq!(sent, Ok(part.len()));
        stack.update_socket(sender);
        while stack.send_frame() {}
        while let Some(frame) = stack.link.take() {
            // Skip frames from the card.
            if Key::of(frame.bytes()).is_some_and(|key| key.port == PORT) {
                frames.push(frame.bytes().into());
            }
            stack.link.give_back(frame);
        }
    }
    frames
}

/// The reader gets the bytes in order, although the last segment arrives first and segments arrive
/// twice.
pub(crate) async fn segments_out_of_order_are_put_in_order() -> Outcome {
    let before = in_use().await;
    let (listener, client, server) = connected(PORT).await?;
    // Wait for the frame that confirms the connection.
    wait(20_000).await;
    let frames = sent_in_parts([b"one, ", b"two, ", b"three"]);
    ensure!(frames.len() == 3, "{} frames", frames.len());
    for n in [2, 1, 2, 0, 0, 1] {
        inject(&frames[n]).await;
    }
    let mut seen = Vec::new();
    while seen.len() < 15 {
        server.readable().await;
        let count = server.read(100, |_, bytes| {
            seen.extend_from_slice(bytes);
            Ok(())
        });
        ensure!(count != Some(Ok(0)), "the connection has ended");
    }
    ensure!(seen == b"one, two, three", "received {seen:?}");
    drop((listener, client, server, frames, seen));
    check_no_leak(before).await
}
