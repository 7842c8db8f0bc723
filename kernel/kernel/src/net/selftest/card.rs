//! Tests that the card interrupts only as often as necessary.

use core::sync::atomic::Ordering::Relaxed;

use super::super::{CARD_FRAMES, INTERRUPTS, NET};
use super::frames::arp;
use super::{MAX_POLLS, POLL_MICROS, wait, yield_to_network};
use crate::selftest::Outcome;
use crate::{ensure, executor};

/// Minimum number of frames per interrupt in a flood.
const FRAMES_PER_INTERRUPT: usize = 16;

/// Sends ARP requests for the address of QEMU's gateway while the card has space, at most
/// `max_count`; returns their number, or `None` if there is no card.
fn ask_gateway(max_count: usize) -> Option<usize> {
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
    while asked < max_count && card.can_send() {
        card.send(question.len(), |to| to.copy_from_slice(&question))?;
        asked += 1;
    }
    Some(asked)
}

fn card_counts() -> (usize, usize) {
    (INTERRUPTS.load(Relaxed), CARD_FRAMES.load(Relaxed))
}

/// Sends `questions` ARP requests, at most `at_once` at a time; returns the numbers of interrupts
/// and of frames in both directions.
async fn ask(questions: usize, at_once: usize) -> Result<(usize, usize), alloc::string::String> {
    let before = card_counts();
    let mut asked = 0;
    while asked < questions {
        let Some(count) = ask_gateway(at_once) else {
            return Ok((0, 0));
        };
        asked += count;
        // Requests that are sent at once are answered while others are sent.
        let allowed_unanswered = if at_once == 1 { 0 } else { asked };
        for _ in 0..MAX_POLLS {
            if card_counts().1 - before.1 + allowed_unanswered >= asked {
                break;
            }
            yield_to_network().await;
        }
        executor::yield_now().await;
    }
    for _ in 0..MAX_POLLS {
        if card_counts().1 - before.1 >= asked {
            break;
        }
        wait(POLL_MICROS).await;
    }
    let after = card_counts();
    let (interrupts, received) = (after.0 - before.0, after.1 - before.1);
    crate::println!(
        "figure: card, {at_once} at once: {asked} sent, {received} received, {interrupts} interrupts"
    );
    ensure!(received >= asked, "{received} answers to {asked} questions");
    Ok((interrupts, asked + received))
}

/// Received frames do not interrupt while others are handled; a sent frame interrupts only if a
/// sender may wait for its buffer.
pub(crate) async fn card_interrupts_only_when_needed() -> Outcome {
    let (interrupts, frames) = ask(2_000, 16).await?;
    ensure!(
        interrupts <= frames / FRAMES_PER_INTERRUPT,
        "a flood: {interrupts} interrupts for {frames} frames"
    );
    let (interrupts, frames) = ask(500, 1).await?;
    // Two frames, a question and its answer, need one interrupt; a quarter more is a margin.
    ensure!(
        interrupts * 8 <= frames * 5,
        "one by one: {interrupts} interrupts for {frames} frames"
    );
    Ok(())
}

/// A polled card interrupts at most once for [`FRAMES_PER_INTERRUPT`] frames, or at most as often
/// as a card that may always interrupt. With the event index, the card that may always interrupt
/// does so hardly more often, because the index names the next frame. The host decides how many
/// replies an interrupt reports, 16 or more, so either flood may have the maximum number of
/// interrupts.
pub(crate) async fn polled_card_interrupts_less() -> Outcome {
    NET.get().lock().link.is_never_polled = true;
    let unpolled = ask(2_000, 16).await;
    NET.get().lock().link.is_never_polled = false;
    let (unpolled, frames) = unpolled?;
    let (polled, _) = ask(2_000, 16).await?;
    ensure!(
        polled <= unpolled.max(frames / FRAMES_PER_INTERRUPT),
        "{polled} interrupts for {frames} frames, {unpolled} for as many without suppression"
    );
    Ok(())
}
