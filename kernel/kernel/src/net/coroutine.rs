//! The coroutine of the network. It handles at most [`BUDGET`] frames a poll.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::link::FRAME;
use super::{BUDGET, NET, now, requests};
use crate::sleep::{Sleep, sleep_until};
use crate::{clock, println};

/// Takes frames and sends them, and looks at the clock.
#[derive(Default)]
pub(super) struct Networker {
    sleep: Option<Sleep>,
    /// Set after the message about frames that are too long.
    has_told: bool,
}

impl Future for Networker {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(net) = NET.try_get() else {
            return Poll::Pending;
        };
        let in_time = net.lock().look_at_clock();
        let mut left = BUDGET;
        while left > 0 && net.lock().handle_frame() {
            left -= 1;
        }
        if !self.has_told && net.lock().link.too_long() > 0 {
            self.has_told = true;
            println!("upshift: frames above {FRAME} bytes come in, and are dropped");
        }
        let mut stack = net.lock();
        let is_more = left == 0 || !in_time || stack.link.leave();
        requests().knows(stack.levels());
        if is_more {
            // The rest is handled after others of its level. Of equally urgent frames the other
            // kind has its turn.
            stack.is_sending = !stack.is_sending;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // An alarm that is early is left as it is.
        let next = stack.table.deadlines.first().map(|(deadline, _)| deadline);
        let is_early = |alarm| alarm > now() && next.is_some_and(|next| alarm <= next);
        let is_kept = stack.alarm.is_some_and(is_early);
        stack.alarm = if is_kept { stack.alarm } else { next };
        drop(stack);
        if !is_kept {
            self.sleep = next.map(|next| {
                let left = next.total_micros() - now().total_micros();
                sleep_until(clock::now() + clock::from_micros(u64::try_from(left).unwrap_or(0)))
            });
        }
        // A sleep that found no memory for its entry has asked for this poll.
        if let Some(sleep) = &mut self.sleep
            && !sleep.is_armed()
            && Pin::new(sleep).poll(cx).is_ready()
        {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
