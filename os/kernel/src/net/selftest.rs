//! The tests of the network inside the kernel: what no program can see, and frames that no
//! machine of good will sends. Frames come in by the loopback.

mod frames;

use alloc::format;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::Ordering::Relaxed;
use core::task::Poll;

use os_abi::Error;
use smoltcp::time::Duration;
use smoltcp::wire::{IpEndpoint, TcpControl};
use upshift_core::Level;

use super::checksum;
use super::link::{FRAME, speaks_for};
use super::table::{Key, Kind};
use super::{BROUGHT, FAREWELL, GONE, INTERRUPTS, LINGER, NET, Socket};
use crate::memory::heap;
use crate::process::share::machine;
use crate::selftest::{Outcome, is_icount};
use crate::sleep::sleep_until;
use crate::{chaos, clock, ensure, executor};
use frames::{address, arp, datagram, echo_request, segment};

const SELF: u32 = 0x7f00_0001;
/// Ports that only these tests use.
const PORT: u16 = 700;

/// A generator that is the same in each run (xorshift).
struct Numbers(u64);

impl Numbers {
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

/// Lets a frame come in, and everything happen that it leads to.
async fn inject(frame: &[u8]) {
    loop {
        {
            let mut stack = NET.get().lock();
            let taken = stack.link.inject(frame);
            stack.go_on();
            if taken {
                return;
            }
        }
        rest().await;
    }
}

/// Lets the network's coroutines go on, which are less urgent than the tests.
async fn rest() {
    sleep_until(clock::now() + clock::from_micros(100)).await;
}

async fn wait(micros: u64) {
    sleep_until(clock::now() + clock::from_micros(micros)).await;
}

/// Between two looks whether connections are over, and how many there may be: a silent one is
/// given up after [`LINGER`]. They are counted, not timed: a host may stop the machine for longer.
const LOOK_MICROS: u64 = 20_000;
const LOOKS: u64 = 6 * LINGER.total_micros() / LOOK_MICROS;

/// Sockets of connections, those that nobody has any more included.
fn streams() -> usize {
    let stack = NET.get().lock();
    let is_stream = |index: &u16| stack.table.kind_of(*index) == Some(Kind::Stream);
    (0..super::SOCKETS as u16).filter(is_stream).count()
}

/// What is in use, when nothing is on its way any more: no connection of a test before, either.
async fn in_use() -> (usize, usize) {
    for _ in 0..LOOKS {
        wait(LOOK_MICROS).await;
        if streams() == 0 {
            break;
        }
    }
    (heap::free_pages(), heap::in_use())
}

/// Is no more in use than before, once all connections are over?
async fn comes_back(before: (usize, usize)) -> Outcome {
    let is_back = |after: (usize, usize)| after.0 >= before.0 && after.1 <= before.1;
    let mut after = in_use().await;
    for _ in 0..LOOKS {
        if is_back(after) || streams() != 0 {
            break;
        }
        after = in_use().await;
    }
    let left = streams();
    ensure!(left == 0, "{left} sockets are left");
    ensure!(is_back(after), "{before:?} before, {after:?} after");
    Ok(())
}

/// A listener, and both ends of a connection to it.
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

/// Does a connection carry bytes?
async fn speaks(port: u16) -> Outcome {
    let (_listener, client, server) = connected(port).await?;
    let put = |_, to: &mut [u8]| {
        to.fill(7);
        Ok(())
    };
    ensure!(
        client.write(5, true, put) == Some(Ok(5)),
        "it does not write"
    );
    server.readable().await;
    let mut seen = 0;
    let count = server.read(100, |_, bytes| {
        seen += bytes.iter().filter(|byte| **byte == 7).count();
        Ok(())
    });
    ensure!(
        count == Some(Ok(5)) && seen == 5,
        "{count:?} read, {seen} right"
    );
    Ok(())
}

/// Sockets of several levels have something to send, and it goes out in the order of these.
pub(crate) async fn what_is_more_urgent_is_sent_first() -> Outcome {
    // So that it is known who has the address.
    speaks(PORT).await?;
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
                stack
                    .udp(index)
                    .send(4, to)
                    .expect("room")
                    .fill(level.get());
            }
            stack.kick(index, level);
            sockets.push(index);
        }
        while stack.send_frame() {}
        while let Some(frame) = stack.link.take() {
            // Not what the card has brought.
            if Key::of(frame.bytes()).is_some_and(|key| key.port == PORT + 1) {
                seen.extend(frame.bytes().last().copied());
            }
            stack.link.give_back(frame);
        }
        sockets
    };
    let mut stack = NET.get().lock();
    for index in sockets {
        stack.give_up(index, executor::LEAST_URGENT_WORK);
    }
    ensure!(seen == [10, 10, 20, 20, 40, 40, 50, 50], "{seen:?}");
    Ok(())
}

/// A frame takes as many instructions beside 900 sockets as beside none.
pub(crate) async fn idle_sockets_cost_nothing() -> Outcome {
    const FRAMES: usize = 64;
    if !is_icount() {
        return Ok(());
    }
    let own = Socket::datagrams(&machine());
    own.bind(PORT).map_err(|error| format!("{error}"))?;
    let frame = datagram((SELF + 1, 9), PORT, b"x");
    let ticks = || {
        let mut ticks = 0;
        for _ in 0..FRAMES {
            let mut stack = NET.get().lock();
            stack.link.inject(&frame);
            let start = clock::now();
            let taken = stack.take_frame();
            ticks += clock::now() - start;
            assert!(taken);
            drop(stack);
            own.receive_from(|_, _, bytes| Ok(bytes.len()));
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
    // Those of its bucket are looked at: one or two.
    ensure!(
        beside * 10 <= alone * 11,
        "{beside} instead of {alone} ticks"
    );
    Ok(())
}

/// Frames of every kind, with bytes changed, cut off or added, or nothing right at all.
pub(crate) async fn garbage_harms_nothing() -> Outcome {
    const ROUNDS: usize = 6_000;
    let before = in_use().await;
    let (listener, client, server) = connected(PORT).await?;
    let datagrams = Socket::datagrams(&machine());
    datagrams.bind(PORT).map_err(|error| format!("{error}"))?;
    let mut numbers = Numbers(0x5eed);
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
        let at = numbers.below(corpus.len());
        let mut frame = corpus[at].clone();
        match numbers.below(5) {
            0 => frame.truncate(numbers.below(frame.len() + 1)),
            1 => frame.resize(1 + numbers.below(1514), 0xa5),
            2 => frame[14..]
                .iter_mut()
                .for_each(|byte| *byte = numbers.next() as u8),
            _ => {}
        }
        for _ in 0..numbers.below(6) {
            let at = numbers.below(frame.len());
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= 1 << numbers.below(8);
            }
        }
        inject(&frame).await;
        // Nobody reads them all.
        let _ = datagrams.receive_from(|_, _, bytes| Ok(bytes.len()));
    }
    wait(20_000).await;
    ensure!(
        client.write(1, true, |_, _| Ok(())) == Some(Ok(1)),
        "the connection is broken"
    );
    server.readable().await;
    drop((listener, client, server, datagrams, corpus));
    speaks(PORT + 2).await?;
    comes_back(before).await
}

/// A frame of 1,514 bytes is taken; longer ones are dropped, whatever is in them, and counted.
pub(crate) async fn frames_that_are_too_long_are_dropped() -> Outcome {
    /// What a frame has around the bytes of a datagram.
    const HEADERS: usize = 14 + 20 + 8;
    let before = in_use().await;
    let counted = NET.get().lock().link.too_long();
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
        // The loopback keeps its order.
        inject(&datagram((SELF + 5, 1234), PORT, b"last")).await;
        let mut all = Vec::new();
        while all.last() != Some(&4) {
            match received() {
                Some(Ok(count)) => all.push(count),
                Some(Err(error)) => return Err(format!("{len}: {error}")),
                None => rest().await,
            }
        }
        let is_taken = len <= FRAME;
        dropped += 2 * u64::from(!is_taken);
        let right = if is_taken {
            &[len - HEADERS, 4][..]
        } else {
            &[4]
        };
        ensure!(all == right, "of {len} bytes {all:?} came");
        let count = NET.get().lock().link.too_long() - counted;
        ensure!(count == dropped, "{count} instead of {dropped} are counted");
    }
    drop(datagrams);
    comes_back(before).await
}

/// What the card brings is not from us, and not for 127.0.0.0/8.
pub(crate) async fn frames_from_outside_do_not_speak_for_us() -> Outcome {
    const OWN: u32 = 0x0a00_020f;
    const OTHER: u32 = 0x0a00_0202;
    let own = Some(OWN.to_be_bytes());
    for (from, is_lie) in [(SELF, true), (SELF + 9, true), (OWN, true), (OTHER, false)] {
        // They ask, or answer, for 127.0.0.1: that is no matter of who has that.
        for frame in [arp(from, false), arp(from, true)] {
            ensure!(speaks_for(&frame, own) == is_lie, "{from:x}: {frame:?}");
        }
        let mut frame = segment((from, 9), PORT, TcpControl::Syn, false, b"");
        ensure!(speaks_for(&frame, own), "{from:x} to 127.0.0.1: {frame:?}");
        frame[30..34].copy_from_slice(&OWN.to_be_bytes());
        ensure!(
            speaks_for(&frame, own) == is_lie,
            "{from:x} to us: {frame:?}"
        );
        for len in 0..frame.len().min(34) {
            let _ = speaks_for(&frame[..len], own);
        }
    }
    ensure!(!speaks_for(&arp(OWN, true), None), "it is nobody's");
    Ok(())
}

/// Questions for the address of QEMU's gateway, as many as there is room for, at most so many;
/// so many have been asked. `None`: there is no card.
fn ask_gateway(most: usize) -> Option<usize> {
    const GATEWAY: u32 = 0x0a00_0202;
    const OURS: u32 = 0x0a00_020f;
    let mut stack = NET.get().lock();
    let mut question = arp(OURS, false);
    let ours = stack.link.address();
    question[6..12].copy_from_slice(&ours);
    question[22..28].copy_from_slice(&ours);
    question[38..].copy_from_slice(&GATEWAY.to_be_bytes());
    let card = stack.link.card.as_mut()?;
    let mut asked = 0;
    while asked < most && card.can_send() {
        card.send(question.len(), |to| to.copy_from_slice(&question))?;
        asked += 1;
    }
    Some(asked)
}

/// Interrupts of the card, and frames that it has brought.
fn card_counts() -> (usize, usize) {
    (INTERRUPTS.load(Relaxed), BROUGHT.load(Relaxed))
}

/// So many questions, at most so many at a time; the interrupts, and the frames both ways.
async fn ask(questions: usize, at_once: usize) -> Result<(usize, usize), alloc::string::String> {
    let before = card_counts();
    let mut asked = 0;
    while asked < questions {
        let Some(count) = ask_gateway(at_once) else {
            return Ok((0, 0));
        };
        asked += count;
        // Those that are asked at once are answered while others are asked.
        let behind = if at_once == 1 { 0 } else { asked };
        for _ in 0..LOOKS {
            if card_counts().1 - before.1 + behind >= asked {
                break;
            }
            rest().await;
        }
        executor::yield_now().await;
    }
    for _ in 0..LOOKS {
        if card_counts().1 - before.1 >= asked {
            break;
        }
        wait(LOOK_MICROS).await;
    }
    let after = card_counts();
    let (interrupts, brought) = (after.0 - before.0, after.1 - before.1);
    crate::println!(
        "figure: card, {at_once} at once: {asked} sent, {brought} brought, {interrupts} interrupts"
    );
    ensure!(brought >= asked, "{brought} answers to {asked} questions");
    Ok((interrupts, asked + brought))
}

/// While there are frames to be handled none interrupts, and a frame that is out does only if
/// somebody may wait for its buffer.
pub(crate) async fn card_interrupts_no_more_than_it_must() -> Outcome {
    let (interrupts, frames) = ask(2_000, 16).await?;
    ensure!(
        interrupts * 16 <= frames,
        "a flood: {interrupts} interrupts for {frames} frames"
    );
    let (interrupts, frames) = ask(500, 1).await?;
    ensure!(
        interrupts * 8 <= frames * 5,
        "one by one: {interrupts} interrupts for {frames} frames"
    );
    Ok(())
}

/// How often it would interrupt if nothing kept it from that: with the event index hardly more often, for that names the next frame.
pub(crate) async fn card_interrupts_less_while_it_is_attended() -> Outcome {
    NET.get().lock().link.is_never_attended = true;
    let without = ask(2_000, 16).await;
    NET.get().lock().link.is_never_attended = false;
    let (without, frames) = without?;
    let (with, _) = ask(2_000, 16).await?;
    ensure!(
        with <= without + frames / 64,
        "{with} interrupts for {frames} frames, {without} for as many without suppression"
    );
    Ok(())
}

/// What one socket has written at once is on its way together, and then what another of its level has.
pub(crate) async fn what_is_written_at_once_is_sent_at_once() -> Outcome {
    let before = in_use().await;
    let first = connected(PORT).await?;
    let second = connected(PORT + 1).await?;
    wait(20_000).await;
    let order = {
        let mut stack = NET.get().lock();
        let all = 0..super::SOCKETS as u16;
        let is_client = |stack: &mut super::Stack, index: u16| {
            stack.table.kind_of(index) == Some(Kind::Stream)
                && stack
                    .tcp(index)
                    .remote_endpoint()
                    .is_some_and(|peer| (PORT..PORT + 2).contains(&peer.port))
        };
        let clients: Vec<u16> = all.filter(|index| is_client(&mut stack, *index)).collect();
        ensure!(clients.len() == 2, "{} connections", clients.len());
        for index in clients {
            let sent = stack.tcp(index).send_slice(&[7; 4_000]);
            ensure!(sent == Ok(4_000), "{sent:?}");
            stack.changed(index);
        }
        let mut order = Vec::new();
        while stack.send_frame() {
            while let Some(frame) = stack.link.take() {
                // Not what says that there is room again.
                let to = Key::of(frame.bytes()).map(|key| key.port);
                order.extend(to.filter(|port| (PORT..PORT + 2).contains(port)));
                stack.link.give_back(frame);
            }
        }
        order
    };
    let of = |port| order.iter().filter(|one| **one == port).count();
    let changes = order.windows(2).filter(|two| two[0] != two[1]).count();
    ensure!(
        (of(PORT), of(PORT + 1), changes) == (3, 3, 1),
        "frames to {order:?}"
    );
    drop((first, second, order));
    comes_back(before).await
}

/// The checksums are those that `smoltcp` has, and what is damaged is found.
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
            ensure!(checksum::is_right(frame), "{frame:?} is called damaged");
            let right = frame.clone();
            checksum::fill(frame);
            ensure!(*frame == right, "{frame:?} instead of {right:?}");
            // Not in the addresses of Ethernet, and no length, which cuts the frame off.
            for at in [22, 26, 33, frame.len() - 1] {
                frame[at] ^= 0x10;
                ensure!(
                    !checksum::is_right(frame),
                    "{at} of {frame:?} is called right"
                );
                frame[at] ^= 0x10;
            }
        }
    }
    Ok(())
}

/// What is written in three parts, a frame each, which do not come in.
fn sent_in_parts(parts: [&[u8]; 3]) -> Vec<Vec<u8>> {
    let mut stack = NET.get().lock();
    let is_sender = |stack: &mut super::Stack, index: u16| {
        let peer = |stack: &mut super::Stack| stack.tcp(index).remote_endpoint();
        stack.table.kind_of(index) == Some(Kind::Stream)
            && peer(stack).is_some_and(|peer| peer.port == PORT)
    };
    let sender = (0..super::SOCKETS as u16).find(|index| is_sender(&mut stack, *index));
    let sender = sender.expect("a connection");
    let mut frames = Vec::new();
    for part in parts {
        let sent = stack.tcp(sender).send_slice(part);
        assert_eq!(sent, Ok(part.len()));
        stack.changed(sender);
        while stack.send_frame() {}
        while let Some(frame) = stack.link.take() {
            // Not what the card has brought.
            if Key::of(frame.bytes()).is_some_and(|key| key.port == PORT) {
                frames.push(frame.bytes().into());
            }
            stack.link.give_back(frame);
        }
    }
    frames
}

/// The last comes first, and some come twice.
pub(crate) async fn segments_out_of_order_are_put_in_order() -> Outcome {
    let before = in_use().await;
    let (listener, client, server) = connected(PORT).await?;
    // What confirms the beginning has come.
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
        ensure!(count != Some(Ok(0)), "it has ended");
    }
    ensure!(seen == b"one, two, three", "{seen:?}");
    drop((listener, client, server, frames, seen));
    comes_back(before).await
}

/// A thousand connections are begun and never confirmed, and one is.
pub(crate) async fn flood_of_beginnings_keeps_nobody_out() -> Outcome {
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
            // Not behind the questions for those who have begun, of which there is one a second.
            ensure!(
                !is_icount() || micros < 10_000,
                "after {n}: it takes {micros} µs"
            );
            let accepted = listener.accept().await;
            ensure!(accepted.is_ok(), "after {n}: it is not accepted");
        }
    }
    rest().await;
    let half_open = |stack: &super::Stack| stack.table.oldest_half_open(PORT).is_some();
    ensure!(half_open(&NET.get().lock()), "nothing is half-open");
    if is_icount() {
        wait(2 * LINGER.total_micros()).await;
        ensure!(!half_open(&NET.get().lock()), "what is half-open stays so");
    }
    drop(listener);
    comes_back(before).await
}

/// A connection whose buffers are full both ways: its reading end takes nothing. The frames of
/// that end are tapped.
async fn stuck() -> Result<(Socket, Socket), alloc::string::String> {
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
    ensure!(written == 2 * 4096, "{written} bytes");
    NET.get().lock().link.tap = Some((PORT, Vec::new()));
    Ok((client, server))
}

/// A window that stays 0, though its owner speaks: whoever writes hears that the peer is gone.
pub(crate) async fn window_that_stays_closed_ends_the_writer() -> Outcome {
    if !minutes_take_no_time() {
        return Ok(());
    }
    let before = in_use().await;
    let (client, server) = stuck().await?;
    let start = clock::now();
    client.writable().await;
    let written = client.write(1, false, |_, _| Ok(()));
    ensure!(written == Some(Err(Error::BrokenPipe)), "{written:?}");
    ensure!(took_about(start, GONE), "not after {GONE}");
    NET.get().lock().link.tap = None;
    drop((client, server));
    comes_back(before).await
}

/// The same, and the writer is gone: nothing stays for a peer that repeats for ever what it has
/// said last, each second.
pub(crate) async fn window_that_stays_closed_keeps_nothing() -> Outcome {
    if !minutes_take_no_time() {
        return Ok(());
    }
    let before = in_use().await;
    let (client, server) = stuck().await?;
    // It is asked whether there is room.
    wait(5_000_000).await;
    let tap = NET.get().lock().link.tap.take();
    let said = tap.ok_or("nothing is tapped")?.1;
    ensure!(Key::of(&said).is_some(), "it has said nothing");
    let start = clock::now();
    drop(client);
    for _ in 0..100 {
        if streams() == 1 {
            break;
        }
        inject(&said).await;
        wait(1_000_000).await;
    }
    ensure!(streams() == 1, "{} sockets are left", streams());
    ensure!(took_about(start, FAREWELL), "not after {FAREWELL}");
    // It has been told.
    server.readable().await;
    let sent = server.write(1, false, |_, _| Ok(()));
    ensure!(sent == Some(Err(Error::BrokenPipe)), "{sent:?}");
    drop((server, said));
    comes_back(before).await
}

/// Is it nothing to wait for minutes? Only where instructions count as time, and not beside
/// devices: what makes QEMU see to these happens 10,000 times a second.
fn minutes_take_no_time() -> bool {
    is_icount() && NET.get().lock().link.card.is_none()
}

/// So long, and less than two seconds more.
fn took_about(start: u64, limit: Duration) -> bool {
    let micros = (clock::now() - start) / clock::from_micros(1);
    let limit = limit.total_micros();
    (limit - 100_000..limit + 2_000_000).contains(&micros)
}

/// A peer that takes its time, but takes, is waited for.
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
        wait(GONE.total_micros() * 3 / 4).await;
        let count = server.read(usize::MAX, |_, _| Ok(()));
        read += count.unwrap_or(Ok(0)).map_err(|error| format!("{error}"))?;
        wait(1_000_000).await;
    }
    let sent = client.write(1, false, |_, _| Ok(()));
    ensure!(sent == Some(Ok(1)), "{sent:?} after {read} bytes");
    drop((listener, client, server));
    comes_back(before).await
}

/// One end resets in each state that the other may be in.
pub(crate) async fn resets_leave_nothing_behind() -> Outcome {
    let before = in_use().await;
    for state in 0..6 {
        let (listener, client, server) = connected(PORT).await?;
        let fill = |_: usize, to: &mut [u8]| {
            to.fill(1);
            Ok(())
        };
        match state {
            // Established, with and without something to send.
            0 => {}
            1 => ensure!(client.write(4096, true, fill).is_some(), "no room"),
            // FIN-WAIT, CLOSE-WAIT, and both.
            2 => client
                .shutdown(executor::level())
                .map_err(|error| format!("{error}"))?,
            3 => server
                .shutdown(executor::level())
                .map_err(|error| format!("{error}"))?,
            4 => {
                ensure!(client.write(4096, true, fill).is_some(), "no room");
                client
                    .shutdown(executor::level())
                    .map_err(|error| format!("{error}"))?;
                server
                    .shutdown(executor::level())
                    .map_err(|error| format!("{error}"))?;
            }
            // Not accepted yet.
            _ => {
                let late = Socket::stream(&machine());
                ensure!(late.connect(SELF, PORT).await.is_ok(), "no connection");
                drop(late);
            }
        }
        if state % 2 == 0 {
            wait(1_000).await;
        }
        // What is closed with bytes that nobody has read is reset.
        ensure!(
            state == 2 || state == 4 || client.write(1, false, fill).is_some() || state == 1,
            "state {state}: no room"
        );
        wait(1_000).await;
        drop(server);
        client.readable().await;
        drop((client, listener));
    }
    comes_back(before).await
}

/// 10.0.2.99: where nobody answers, on the network of the card if there is one, and where no route leads if there is none. A router would
/// say that there is no such place, and nothing would be left to wait for.
const NOWHERE: u32 = 0x0a00_0263;

/// A socket that waits for the clock is not forgotten when there is no memory for the alarm.
pub(crate) async fn alarm_that_found_no_memory_is_set_later() -> Outcome {
    let before = in_use().await;
    let mut pause = pin!(sleep_until(clock::now() + clock::from_micros(20_000)));
    let socket = Socket::stream(&machine());
    let left = {
        // It waits to the end: by its level the network runs.
        let mut connects = pin!(socket.connect(NOWHERE, PORT));
        let waits = poll_fn(|cx| {
            // The test's own timer is set before there is none for others.
            let _ = pause.as_mut().poll(cx);
            Poll::Ready(connects.as_mut().poll(cx).is_pending())
        });
        ensure!(waits.await, "it does not wait");
        // The sender finds no way to the peer, and the clock is to look again.
        chaos::refuse_memory(1);
        pause.await;
        // If an alarm was set before, it is the next that finds none.
        let until = clock::now() + clock::from_micros(5_000_000);
        while chaos::refusals_left() != 0 && clock::now() < until {
            executor::yield_now().await;
        }
        let left = chaos::refusals_left();
        chaos::refuse_memory(0);
        left
    };
    ensure!(left == 0, "no alarm was set");
    let ended = socket.shutdown(executor::level());
    ended.map_err(|error| format!("{error}"))?;
    drop(socket);
    comes_back(before).await
}
