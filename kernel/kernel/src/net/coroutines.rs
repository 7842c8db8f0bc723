//! The two coroutines of the network. Each does at most [`BUDGET`] frames a poll.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::link::FRAME;
use super::{BUDGET, NET, now};
use crate::sleep::{Sleep, sleep_until};
use crate::{clock, println};

/// The coroutine that takes frames, and looks at the clock.
#[derive(Default)]
pub(super) struct Receiver {
    sleep: Option<Sleep>,
    /// It was said that there are frames that are too long.
    has_told: bool,
}

impl Future for Receiver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(net) = NET.try_get() else {
            return Poll::Pending;
        };
        let mut left = BUDGET;
        while left > 0 && net.lock().take_frame() {
            left -= 1;
        }
        if !self.has_told && net.lock().link.too_long() > 0 {
            self.has_told = true;
            println!("upshift: frames above {FRAME} bytes come in, and are dropped");
        }
        let mut stack = net.lock();
        let in_time = stack.look_at_clock();
        let is_more = left == 0 || !in_time || stack.link.leave();
        // Room that there is since it has begun was not told to the sender.
        stack.go_on_sending();
        if is_more {
            // More, after others of its level.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        stack.settle_receiver();
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
        // One that found no memory for its entry has asked for this poll.
        if let Some(sleep) = &mut self.sleep
            && !sleep.is_armed()
            && Pin::new(sleep).poll(cx).is_ready()
        {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// The coroutine that sends.
pub(super) struct Sender;

impl Future for Sender {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(net) = NET.try_get() else {
            return Poll::Pending;
        };
        let mut left = BUDGET;
        while left > 0 && net.lock().send_frame() {
            left -= 1;
        }
        let mut stack = net.lock();
        let levels = stack.table.levels();
        stack.sender.follow(levels);
        stack.go_on_receiving();
        if left == 0 {
            // More, after others of its level.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
