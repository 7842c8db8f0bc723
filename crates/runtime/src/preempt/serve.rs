//! The loop of the current seat: that of an inline vCPU (`worker.rs`), plus the
//! watch that the sentinel keeps over each poll.
//!
//! The permit of the seat is in use throughout, but for the time of polls.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use upshift_core::{CoroutineId, Picked, Polled, Running, Yielded};
use upshift_elevate::dispatch::{Role, Worth};

use super::seat::{Go, Seat, compiler_barrier};
use super::split::{NEVER, RING_SEAT, Split};
use crate::clock;
use crate::coop;
use crate::host::Linux;
use crate::worker::{POLLS_PER_REAP, Spin, Worker};

impl Split {
    /// Serves the vCPU until it is given to another seat; true: until it is to leave.
    pub(super) fn serve(&self, me: usize) -> bool {
        let worker = self.worker();
        let seat = &self.seats[me];
        // SAFETY: this seat is current: it alone uses the ring.
        unsafe { worker.ring.adopt() };
        // Whatever made us current waits in the ring, or in the queues.
        self.turn(worker);
        self.answer_guess(worker);
        let mut spin = Spin::default();
        let mut reaped_at = worker.executor.clock();
        let mut idle_at = reaped_at;
        let mut polls = 0;
        // As in the loop of an inline vCPU.
        let mut turned = false;
        let mut back: Option<Yielded<'_, Linux>> = None;
        loop {
            if me != RING_SEAT && self.roles().role(RING_SEAT) == Role::Free {
                drop(back.take());
                self.hand_over(worker, me, RING_SEAT);
                return false;
            }
            let prompt = self.suspended.load(Relaxed) != 0
                || worker.executor.clock().wrapping_sub(idle_at) < self.settings.busy_after;
            if worker.submissions_are_urgent(back.as_ref()) || (prompt && worker.ring_is_due()) {
                // What has arrived goes before what is resumed, if it is as urgent; and while there is time to spare, it
                // need not wait behind a poll that may turn out to be long.
                self.turn(worker);
                reaped_at = worker.executor.clock();
                polls = 0;
            }
            if self.home_has_come() {
                self.fetch_aside();
            }
            match worker.executor.pick(back.take()) {
                Some(Picked::Poll(running)) => {
                    coop::refill();
                    back = if running.is_pinned() {
                        self.poll_pinned(running)
                    } else {
                        self.begin(worker, seat);
                        let polled = running.poll();
                        self.end(seat);
                        match polled {
                            Polled::Yielded(yielded) => Some(yielded),
                            Polled::Blocked | Polled::Exited => None,
                        }
                    };
                    polls += 1;
                    turned = false;
                    if polls >= POLLS_PER_REAP || worker.reap_is_due(reaped_at) {
                        self.turn(worker);
                        reaped_at = worker.executor.clock();
                        polls = 0;
                    }
                    if self.leaves(me) {
                        return true;
                    }
                }
                Some(Picked::Resume { id, entitled }) => {
                    self.resume(worker, me, id, entitled);
                    return false;
                }
                None => {
                    polls = 0;
                    if !turned && (worker.ring_is_due() || worker.timer_is_due()) {
                        self.turn(worker);
                        turned = true;
                    } else if self.leaves(me) {
                        return true;
                    } else {
                        self.watch().mask();
                        worker.wait(&mut spin);
                        self.listen(worker);
                        idle_at = worker.executor.clock();
                        turned = false;
                    }
                    reaped_at = worker.executor.clock();
                }
            }
        }
    }

    /// If a poll was suspended to find out whether something is more urgent: says whether it is.
    fn answer_guess(&self, worker: &Worker) {
        if let Some(level) = self.guess.swap(0, Relaxed).checked_sub(1)
            && worker.executor.bitmap() & ((1 << level) - 1) != 0
        {
            self.hits.store(self.hits.load(Relaxed) + 1, Relaxed);
        }
    }

    fn leaves(&self, me: usize) -> bool {
        me == RING_SEAT && self.stop.load(Acquire) && self.suspended.load(Relaxed) == 0
    }

    /// Enters the ring, reaps, expires timers; then listens.
    fn turn(&self, worker: &Worker) {
        self.watch().mask();
        worker.turn();
        self.listen(worker);
    }

    /// From now on what becomes ready during a poll wakes the sentinel; unless it is
    /// awake anyway, or has been woken for nothing too often.
    fn listen(&self, worker: &Worker) {
        if self.watched.load(Relaxed)
            || worker.executor.is_attended()
            || self.deaf_until.load(Relaxed) > worker.executor.clock()
        {
            return;
        }
        // With a full barrier: what came before is seen by `begin`.
        worker.executor.set_attended(true);
    }

    /// The poll of this seat begins: from here on it may be suspended.
    #[inline]
    fn begin(&self, worker: &Worker, seat: &Seat) {
        seat.started.store(worker.executor.clock().max(1), Relaxed);
        compiler_barrier();
        if !self.watched.load(Relaxed) {
            self.watch_over(worker);
        }
        if seat.permit.leave() {
            Split::tell_sentinel();
        }
    }

    /// The poll of this seat is over; if it was suspended, when it has been resumed.
    #[inline]
    fn end(&self, seat: &Seat) {
        seat.permit.enter();
        if seat.resumed.load(Relaxed) == 0 {
            seat.started.store(0, Relaxed);
        } else {
            self.end_resumed(seat);
        }
        // What arrives between polls is seen before the next.
        self.watch().mask();
    }

    /// The seat has finished a poll that had been suspended, and serves the vCPU.
    #[cold]
    fn end_resumed(&self, seat: &Seat) {
        let ran = clock::nanos(clock::from_ticks(seat.has_run()));
        seat.started.store(0, Relaxed);
        seat.resumed.store(0, Relaxed);
        seat.ran.store(0, Relaxed);
        let worth = Worth::from_bits(self.worth.load(Relaxed)).and(ran, &self.settings.limits);
        self.worth.store(worth.to_bits(), Relaxed);
        if seat.background.swap(false, Relaxed)
            && let Some(thread) = seat.thread.get()
        {
            // Without rights it goes on as it is.
            let _ = thread.set(self.settings.bands.elevated());
        }
    }

    /// Sees to it that the sentinel comes: by a timer if somebody waits already, or
    /// a timer of the vCPU is pending, otherwise by the bell.
    #[inline]
    fn watch_over(&self, worker: &Worker) {
        let waits = worker.executor.bitmap() != 0 || worker.ring.has_completions();
        let deadline = worker.timers.next_deadline().unwrap_or(NEVER);
        let armed = self.armed.load(Relaxed);
        if deadline < armed || (waits && !self.is_armed_for_waiters(worker, armed)) {
            self.set_watch(waits, deadline);
        }
        if self.watched.load(Relaxed) {
            return;
        }
        let clock = worker.executor.clock();
        if self.deaf_until.load(Relaxed) > clock {
            if !waits {
                // Somebody may come while nobody listens.
                self.set_watch(true, NEVER);
            }
            return;
        }
        if !worker.executor.is_attended() {
            // The bell has rung for something that is over.
            self.listen(worker);
        }
        self.watch().unmask();
        fence(SeqCst);
        if !waits && (worker.executor.bitmap() != 0 || worker.ring.has_completions()) {
            self.set_watch(true, NEVER);
        }
    }

    /// The backstop is set, and nothing better to be had.
    #[inline]
    fn is_armed_for_waiters(&self, worker: &Worker, armed: u64) -> bool {
        armed != NEVER && self.precise_from.load(Relaxed) > worker.executor.clock()
    }

    /// Sets the sentinel's timer: for somebody who waits, to the end of a slice
    /// that begins now if such timers have been worth while, else to the backstop.
    #[cold]
    fn set_watch(&self, waits: bool, deadline: u64) {
        let (now, ticks) = (clock::now(), clock::ticks());
        let until = |then: u64| clock::nanos(clock::from_ticks(then.saturating_sub(ticks)));
        // While the sentinel has spent its allowance, even those who wait wait for it.
        let soonest = now + until(self.deaf_until.load(Relaxed));
        let mut at = deadline.max(soonest);
        if waits {
            let limits = &self.settings.limits;
            let precise = until(self.precise_from.load(Relaxed)) == 0;
            let look = if precise {
                self.watched.store(true, Relaxed);
                soonest.max(now + self.slice.load(Relaxed))
            } else {
                now + limits.backstop
            };
            at = at.min(look);
        }
        if at < self.armed.load(Relaxed) {
            self.set_timer(at);
        }
    }

    /// Has the home thread poll a pinned coroutine, or keeps it until there is one.
    fn poll_pinned<'a>(&self, running: Running<'a, Linux>) -> Option<Yielded<'a, Linux>> {
        match self.home.poll(running) {
            Ok(back) => back,
            Err(running) => {
                // SAFETY: the vCPU outlives what is kept aside; the list is the current seat's.
                unsafe {
                    let running =
                        std::mem::transmute::<Running<'a, Linux>, Running<'static, Linux>>(running);
                    (*self.aside.0.get()).push(running);
                }
                None
            }
        }
    }

    fn home_has_come(&self) -> bool {
        // SAFETY: the list is the current seat's.
        !unsafe { &*self.aside.0.get() }.is_empty() && !self.home.is_absent()
    }

    /// Queues what was kept aside.
    pub(super) fn fetch_aside(&self) {
        // SAFETY: the list is the current seat's; dropping what was picked queues it again.
        drop(std::mem::take(unsafe { &mut *self.aside.0.get() }));
    }

    /// Gives the vCPU to a free seat.
    fn hand_over(&self, worker: &Worker, me: usize, to: usize) {
        debug_assert_eq!(self.current.load(Relaxed), me);
        worker.executor.refresh_clock();
        // Held until the other seat is told: the sentinel sees all of it or nothing.
        let mut roles = self.roles();
        roles.hand_over(to);
        self.current.store(to, Release);
        self.seats[to].tell(Go::Serve);
    }

    /// Gives the vCPU to the seat that holds the suspended poll of a coroutine.
    fn resume(&self, worker: &Worker, me: usize, id: CoroutineId, entitled: bool) {
        let seats = &self.seats;
        let to = seats
            .iter()
            .position(|seat| seat.coroutine.load(Relaxed) == id.to_u64());
        let Some(to) = to else {
            unreachable!("{id} is suspended on a seat");
        };
        let seat = &seats[to];
        seat.coroutine.store(0, Relaxed);
        seat.entitled.store(entitled, Relaxed);
        seat.resumed.store(clock::ticks(), Relaxed);
        debug_assert_ne!(me, to);
        // Held until the permit is granted: the sentinel sees all of it or nothing.
        let mut roles = self.roles();
        roles.resume(to);
        // It computes in the background, and meets no throttling there; unless others that are suspended would outrank it.
        let age = clock::ticks().saturating_sub(seat.started.load(Relaxed));
        let background = self.suspended.fetch_sub(1, Relaxed) == 1
            && age > self.settings.background_after
            && !entitled;
        seat.background.store(background, Relaxed);
        self.current.store(to, Release);
        if !self.watched.load(Relaxed) {
            self.listen(worker);
            self.watch_over(worker);
        }
        if let Some(owner) = seat.owner.get() {
            // SAFETY: it is about to become the current seat, and is not within a use of the ring.
            unsafe { worker.ring.assign(*owner) };
        }
        if let Some(thread) = seat.thread.get() {
            // Without rights it goes on when this seat sleeps.
            let _ = if background {
                thread.set_fair()
            } else {
                thread.set(self.settings.bands.elevated())
            };
        }
        // From here on the vCPU is the other seat's.
        seat.permit.grant();
    }

    /// Ends the wait of the current seat in the ring, so that it looks around.
    pub(super) fn kick(&self) {
        upshift_core::Host::pend(self.shared.domain.host(), self.index);
    }
}

/// The poll of this thread has made something ready on its vCPU that it holds up.
#[inline]
pub(crate) fn waits_here(more_urgent: bool) {
    Split::with_current(|split| split.waiter(more_urgent));
}

impl Split {
    fn waiter(&self, more_urgent: bool) {
        if more_urgent {
            // It is heard when the seat is through with what it is doing.
            self.watch().ring_bell();
        } else if !self.watched.load(Relaxed) && self.armed.load(Relaxed) == NEVER {
            self.set_watch(true, NEVER);
        }
    }
}
