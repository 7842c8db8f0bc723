//! Tests of when acknowledgements and window updates are sent, on connections within the machine.

use alloc::format;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

use os_abi::Error;

use super::super::{ACK_DELAY, NET, SOCKETS};
use super::{PORT, check_no_leak, connected, in_use, wait, yield_to_network};
use crate::net::endpoint::endpoint;
use crate::net::table::Kind;
use crate::selftest::{Outcome, is_icount};
use crate::sleep::sleep_until;
use crate::{clock, ensure};

fn fill(_: usize, to: &mut [u8]) -> Result<(), Error> {
    to.fill(7);
    Ok(())
}

/// Sends and receives frames until none is left; returns the number of received frames.
fn exchange_frames() -> usize {
    let mut stack = NET.get().lock();
    let mut frames = 0;
    loop {
        stack.apply_requests();
        let (sends, takes) = (stack.send_frame(), stack.take_frame());
        frames += usize::from(takes);
        if !sends && !takes {
            return frames;
        }
    }
}

/// Returns the number of unacknowledged bytes of all connections.
fn unacknowledged() -> usize {
    let stack = NET.get().lock();
    let mut bytes = 0;
    for index in 0..SOCKETS as u16 {
        if stack.table.kind_of(index) == Some(Kind::Stream) {
            bytes += endpoint(index).tcp().send_queue();
        }
    }
    bytes
}

/// A request and its answer are two frames, each of which acknowledges the other. A request without
/// an answer is acknowledged by a separate frame, a little later.
pub(crate) async fn answers_acknowledge_requests() -> Outcome {
    const ROUNDS: usize = 4;
    // On one hart, and without a card, only this test sends and receives frames meanwhile.
    if !is_icount() || NET.get().lock().link.card.is_some() {
        return Ok(());
    }
    let before = in_use().await;
    let (listener, client, server) = connected(PORT).await?;
    wait(2 * ACK_DELAY.total_micros()).await;
    // In the first round the machine resolves its own address.
    let mut frames = [[0; 2]; ROUNDS];
    for round in &mut frames {
        for (count, (from, to)) in round
            .iter_mut()
            .zip([(&client, &server), (&server, &client)])
        {
            let written = from.write(16, true, fill);
            ensure!(written == Some(Ok(16)), "{written:?} written");
            *count = exchange_frames();
            let read = to.read(100, |_, _| Ok(()));
            ensure!(read == Some(Ok(16)), "{read:?} read");
        }
    }
    ensure!(
        frames[1..] == [[1; 2]; ROUNDS - 1],
        "frames per request and answer, by round: {frames:?}"
    );
    let bytes = unacknowledged();
    ensure!(
        bytes == 16,
        "{bytes} instead of 16 bytes are unacknowledged"
    );
    wait(2 * ACK_DELAY.total_micros()).await;
    let bytes = unacknowledged();
    ensure!(bytes == 0, "{bytes} bytes are still unacknowledged");
    drop((listener, client, server));
    check_no_leak(before).await
}

/// Even with small reads, the writer learns of free space before it would probe for it, a second
/// later.
pub(crate) async fn small_reads_make_room() -> Outcome {
    const BYTES: usize = 64 * 1024;
    let before = in_use().await;
    let (listener, client, server) = connected(PORT).await?;
    let (start, mut written, mut read) = (clock::now(), 0, 0);
    let text = |error: Error| format!("{error}");
    while read < BYTES {
        while written < BYTES
            && let Some(count) = client.write(BYTES - written, false, fill)
        {
            written += count.map_err(text)?;
        }
        match server.read(100, |_, _| Ok(())) {
            Some(count) => read += count.map_err(text)?,
            None => yield_to_network().await,
        }
    }
    let micros = (clock::now() - start) / clock::from_micros(1);
    // Half of the second after which the writer would probe.
    ensure!(
        !is_icount() || micros < 500_000,
        "the transfer takes {micros} µs"
    );
    drop((listener, client, server));
    check_no_leak(before).await
}

/// An acknowledgement does not wake a reader that waits for bytes.
pub(crate) async fn acknowledgements_wake_no_reader() -> Outcome {
    if !is_icount() {
        return Ok(());
    }
    let before = in_use().await;
    let (listener, client, server) = connected(PORT).await?;
    wait(2 * ACK_DELAY.total_micros()).await;
    let mut polls = 0;
    {
        let mut readable = pin!(client.readable());
        let mut pause = pin!(sleep_until(
            clock::now() + clock::from_micros(4 * ACK_DELAY.total_micros())
        ));
        let written = client.write(16, true, fill);
        ensure!(written == Some(Ok(16)), "{written:?} written");
        poll_fn(|cx| {
            polls += 1;
            let is_ready = readable.as_mut().poll(cx).is_ready();
            let has_ended = pause.as_mut().poll(cx).is_ready();
            if is_ready || has_ended {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
    ensure!(unacknowledged() == 0, "the bytes are not acknowledged");
    // One poll at the beginning, and one at the end.
    ensure!(polls == 2, "{polls} polls");
    drop((listener, client, server));
    check_no_leak(before).await
}
