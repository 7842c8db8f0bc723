//! The kernel coroutine that runs the network stack. It handles at most [`MAX_FRAMES_PER_POLL`]
//! frames in a poll.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::link::FRAME;
use super::{MAX_FRAMES_PER_POLL, NET, now, requests};
use crate::sleep::{Sleep, sleep_until};
use crate::{clock, println};

#[derive(Default)]
pub(super) struct NetworkTask {
    sleep: Option<Sleep>,
    /// Set after the message about frames that exceed [`FRAME`].
    has_warned: bool,
}

impl Future for NetworkTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(net) = NET.try_get() else {
            return Poll::Pending;
        };
        let all_served = net.lock().serve_deadlines();
        let mut frames_left = MAX_FRAMES_PER_POLL;
        while frames_left > 0 && net.lock().handle_frame() {
            frames_left -= 1;
        }
        if !self.has_warned && net.lock().link.too_long() > 0 {
            self.has_warned = true;
            println!("upshift: frames above {FRAME} bytes are dropped");
        }
        let mut stack = net.lock();
        let has_more = frames_left == 0 || !all_served || stack.link.stop_polling();
        requests().set_known_levels(stack.levels());
        if has_more {
            // The remaining frames are handled after other coroutines of the level. The next poll
            // prefers the other direction among equally urgent frames.
            stack.is_sending = !stack.is_sending;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // An alarm that is too early stays set.
        let next = stack.table.deadlines.first().map(|(deadline, _)| deadline);
        let is_early = |alarm| alarm > now() && next.is_some_and(|next| alarm <= next);
        let keeps_alarm = stack.alarm.is_some_and(is_early);
        stack.alarm = if keeps_alarm { stack.alarm } else { next };
        drop(stack);
        if !keeps_alarm {
            self.sleep = next.map(|next| {
                let left = next.total_micros() - now().total_micros();
                sleep_until(clock::now() + clock::from_micros(u64::try_from(left).unwrap_or(0)))
            });
        }
        // A sleep that found no memory for its timer has requested this poll.
        if let Some(sleep) = &mut self.sleep
            && !sleep.is_armed()
            && Pin::new(sleep).poll(cx).is_ready()
        {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
