//! Tests with malformed frames, and with floods of frames.

use alloc::format;
use alloc::vec::Vec;

use smoltcp::wire::TcpControl;

use super::super::link::{FRAME, claims_own_address};
use super::super::{NET, SILENCE_TIMEOUT, Socket};
use super::frames::{arp, datagram, echo_request, segment};
use super::{
    PORT, SELF, check_connection, check_no_leak, connected, in_use, inject, wait, yield_to_network,
};
use crate::process::share::machine;
use crate::selftest::{Outcome, is_icount};
use crate::{clock, ensure};

/// Generator of deterministic random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Injects frames of every kind whose bytes are changed, truncated or extended, or are random. An
/// open connection survives, another can be opened, and nothing leaks.
pub(crate) async fn garbage_harms_nothing() -> Outcome {
    const ROUNDS: usize = 6_000;
    let before = in_use().await;
    let (listener, client, server) = connected(PORT).await?;
    let datagrams = Socket::datagrams(&machine());
    datagrams.bind(PORT).map_err(|error| format!("{error}"))?;
    let mut random = Random(0x5eed);
    let from = (SELF + 5, 1234);
    let mut corpus = Vec::from([
        arp(SELF + 5, false),
        arp(SELF + 6, true),
        echo_request(SELF + 5, 55),
        datagram(from, PORT, b"hello"),
        datagram(from, 68, &[2; 300]),
        datagram(from, PORT + 1, &[0; 1400]),
    ]);
    let controls = [
        TcpControl::Syn,
        TcpControl::Fin,
        TcpControl::Rst,
        TcpControl::Psh,
        TcpControl::None,
    ];
    for control in controls {
        for ack in [false, true] {
            corpus.push(segment(from, PORT, control, ack, b"data"));
        }
    }
    for _ in 0..ROUNDS {
        let at = random.below(corpus.len());
        let mut frame = corpus[at].clone();
        match random.below(5) {
            0 => frame.truncate(random.below(frame.len() + 1)),
            1 => frame.resize(1 + random.below(1514), 0xa5),
            2 => frame[14..]
                .iter_mut()
                .for_each(|byte| *byte = random.next() as u8),
            _ => {}
        }
        for _ in 0..random.below(6) {
            let at = random.below(frame.len());
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        inject(&frame).await;
        // A part of the datagrams is read.
        let _ = datagrams.receive_from(|_, _, bytes| Ok(bytes.len()));
    }
    wait(20_000).await;
    ensure!(
        client.write(1, true, |_, _| Ok(())) == Some(Ok(1)),
        "the connection is broken"
    );
    server.readable().await;
    drop((listener, client, server, datagrams, corpus));
    check_connection(PORT + 2).await?;
    check_no_leak(before).await
}

/// A frame of 1,514 bytes is accepted; longer frames are dropped, whatever their contents, and
/// counted.
pub(crate) async fn frames_that_are_too_long_are_dropped() -> Outcome {
    /// Number of bytes by which a frame is longer than the payload of its datagram.
    const HEADERS: usize = 14 + 20 + 8;
    let before = in_use().await;
    let before_too_long = NET.get().lock().link.too_long();
    let datagrams = Socket::datagrams(&machine());
    datagrams.bind(PORT).map_err(|error| format!("{error}"))?;
    let received = || datagrams.receive_from(|_, _, bytes| Ok(bytes.len()));
    let mut dropped = 0;
    for len in [1513, 1514, 1515, 1600, 2048, 4000, 4084, 1514] {
        inject(&datagram(
            (SELF + 5, 1234),
            PORT,
            &[7; 4096][..len - HEADERS],
        ))
        .await;
        inject(&echo_request(SELF + 5, len)).await;
        // The loopback preserves the order, so this datagram of 4 bytes arrives last.
        inject(&datagram((SELF + 5, 1234), PORT, b"last")).await;
        let mut all = Vec::new();
        while all.last() != Some(&4) {
            match received() {
                Some(Ok(count)) => all.push(count),
                Some(Err(error)) => return Err(format!("{len}: {error}")),
                None => yield_to_network().await,
            }
        }
        let is_accepted = len <= FRAME;
        dropped += 2 * u64::from(!is_accepted);
        let expected = if is_accepted {
            &[len - HEADERS, 4][..]
        } else {
            &[4]
        };
        ensure!(
            all == expected,
            "a frame of {len} bytes: received datagrams of {all:?} bytes"
        );
        let count = NET.get().lock().link.too_long() - before_too_long;
        ensure!(
            count == dropped,
            "{count} instead of {dropped} dropped frames are counted"
        );
    }
    drop(datagrams);
    check_no_leak(before).await
}

/// Frames from the card that come from this machine, or go to 127.0.0.0/8, are recognized.
pub(crate) async fn spoofed_frames_are_recognized() -> Outcome {
    const OWN: u32 = 0x0a00_020f;
    const OTHER: u32 = 0x0a00_0202;
    let own = Some(OWN.to_be_bytes());
    for (from, is_spoofed) in [(SELF, true), (SELF + 9, true), (OWN, true), (OTHER, false)] {
        // The frames ask for 127.0.0.1, or reply for it.
        for frame in [arp(from, false), arp(from, true)] {
            ensure!(
                claims_own_address(&frame, own) == is_spoofed,
                "{from:x}: {frame:?}"
            );
        }
        let mut frame = segment((from, 9), PORT, TcpControl::Syn, false, b"");
        ensure!(
            claims_own_address(&frame, own),
            "{from:x} to 127.0.0.1: {frame:?}"
        );
        frame[30..34].copy_from_slice(&OWN.to_be_bytes());
        ensure!(
            claims_own_address(&frame, own) == is_spoofed,
            "{from:x} to us: {frame:?}"
        );
        for len in 0..frame.len().min(34) {
            let _ = claims_own_address(&frame[..len], own);
        }
    }
    ensure!(
        !claims_own_address(&arp(OWN, true), None),
        "an address is reported as own although the machine has none"
    );
    Ok(())
}

/// A thousand connections are begun and never confirmed, but other clients can connect.
pub(crate) async fn syn_flood_keeps_no_client_out() -> Outcome {
    let before = in_use().await;
    let listener = Socket::stream(&machine());
    listener.bind(PORT).map_err(|error| format!("{error}"))?;
    listener.listen(4).map_err(|error| format!("{error}"))?;
    for n in 0..1_000u16 {
        let from = (SELF + 100 + u32::from(n), 5000 + n);
        inject(&segment(from, PORT, TcpControl::Syn, false, b"")).await;
        if n % 250 == 249 {
            let client = Socket::stream(&machine());
            let start = clock::now();
            let connected = client.connect(SELF, PORT).await;
            let micros = (clock::now() - start) / clock::from_micros(1);
            ensure!(connected == Ok(()), "after {n}: {connected:?}");
            // The connection does not wait for the ARP requests for half-open peers, of which one
            // is sent per second.
            ensure!(
                !is_icount() || micros < 10_000,
                "after {n}: the connection takes {micros} µs"
            );
            let accepted = listener.accept().await;
            ensure!(
                accepted.is_ok(),
                "after {n}: the connection is not accepted"
            );
        }
    }
    yield_to_network().await;
    let has_half_open = |stack: &super::super::Stack| stack.table.oldest_half_open(PORT).is_some();
    ensure!(
        has_half_open(&NET.get().lock()),
        "no connection is half-open"
    );
    if is_icount() {
        wait(2 * SILENCE_TIMEOUT.total_micros()).await;
        ensure!(
            !has_half_open(&NET.get().lock()),
            "a connection stays half-open"
        );
    }
    drop(listener);
    check_no_leak(before).await
}
