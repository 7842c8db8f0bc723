//! The sentinel of a vCPU: the thread that suspends polls.
//!
//! It sleeps until its bell rings (an arrival in the ring, something that became
//! ready, the end of a critical section that it asked to hear of) or its timer goes
//! off, looks at the current seat, and does what the supervisor decides. On its CPU
//! it runs before everything else of the vCPU, so what it sees stands still; where
//! that fails (somebody has moved the threads), the permit holds.
//!
//! Nothing is forgotten: when it goes to sleep without a timer it first says that
//! it listens, then looks once more; whoever makes something ready does the
//! reverse. Both steps are separated by full barriers.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use upshift_elevate::Priority;
use upshift_elevate::dispatch::{
    Decision, Guard, Observation, Poll, Role, Supervisor, Wake, Worth, heavy_barrier,
};

use super::split::{NEVER, Split};
use super::suspend::Unsuspended;
use crate::clock;

/// When the ring is in use just as it is to be taken away: so long until the next try, ns.
const RETRY: u64 = 200_000;
/// The most looks in a row.
const LOOKS: usize = 8;

/// Runs until the vCPU has ended.
pub(super) fn run(split: &Split) {
    let mut supervisor = Supervisor::new(split.settings.limits.clone(), clock::now());
    let mut turns = Turns::default();
    while !split.ended.load(Acquire) {
        let wake = sleep(split);
        if wake == Wake::Timer {
            split.armed.store(NEVER, Relaxed);
        }
        split.watched.store(true, Relaxed);
        look(split, &mut supervisor, wake);
        turns.go_on(split, supervisor.limits().backstop);
    }
}

/// Suspended threads run when everybody above them sleeps, because they may hold
/// what is waited for. So that an endless one does not keep the CPU from the one
/// that matters, they are put ahead of each other in turn.
#[derive(Default)]
struct Turns {
    /// The seat that is ahead, if any is.
    ahead: Option<usize>,
    /// When the next one is due, ns.
    due: u64,
}

impl Turns {
    fn go_on(&mut self, split: &Split, slice: u64) {
        if split.suspended.load(Relaxed) < 2 {
            return;
        }
        let now = clock::now();
        if now >= self.due {
            self.due = now + slice;
            // No seat changes its role meanwhile.
            let roles = split.roles();
            let is_suspended = |seat: &usize| roles.role(*seat) == Role::Suspended;
            let bands = split.settings.bands;
            let set = |seat: usize, priority| {
                if let Some(thread) = split.seats[seat].thread.get() {
                    // Without rights they stay as they are.
                    let _ = thread.set(priority);
                }
            };
            if let Some(before) = self.ahead.filter(is_suspended) {
                set(before, bands.demoted());
            }
            let after = self.ahead.map_or(0, |seat| seat + 1);
            self.ahead = (after..roles.count()).chain(0..after).find(is_suspended);
            if let (Some(next), Ok(ahead)) = (self.ahead, Priority::new(bands.demoted().get() + 1))
            {
                set(next, ahead);
            }
        }
        if split.armed.load(Relaxed) > self.due {
            split.set_timer(self.due);
        }
    }
}

/// Waits for the bell or the timer.
fn sleep(split: &Split) -> Wake {
    let mut events = [split.watch().raw_fd(), split.timer()].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: a pointer to a local array of the length given. An error means: look.
    unsafe { libc::poll(events.as_mut_ptr(), 2, -1) };
    if events[0].revents != 0 {
        split.watch().clear();
    }
    if events[1].revents == 0 {
        return Wake::Bell;
    }
    let mut count = 0u64;
    // SAFETY: a pointer to a local of the size given; the descriptor does not block.
    unsafe { libc::read(split.timer(), (&raw mut count).cast(), size_of::<u64>()) };
    Wake::Timer
}

/// Looks and acts until there is nothing to do for now.
fn look(split: &Split, supervisor: &mut Supervisor, mut wake: Wake) {
    for _ in 0..LOOKS {
        let id = poll_id(split);
        let seen = observe(split);
        let decision = supervisor.decide(wake, &seen);
        account(split, supervisor);
        match decision {
            Decision::Rest => {
                if rest(split, id, &seen) {
                    return;
                }
            }
            Decision::Look(at) => {
                if !listen_for_the_urgent(split, supervisor, &seen) {
                    return watch_until(split, at);
                }
            }
            Decision::Ask(at) => {
                let seat = &split.seats[split.current.load(Acquire)];
                if let Some(thread) = seat.thread.get()
                    && seat.background.load(Relaxed)
                {
                    // At ordinary priority others of this CPU could keep it from ever leaving what it is in.
                    let _ = thread.set(split.settings.bands.elevated());
                }
                if seat.permit.ask(heavy_barrier) || seen.poll.is_some_and(is_users_guard) {
                    return watch_until(split, at);
                }
            }
            Decision::Suspend => match split.suspend(guessed_level(&seen)) {
                Ok(()) => return,
                Err(Unsuspended::InUse) => return watch_until(split, seen.now + RETRY),
                Err(Unsuspended::NoSeat) => {
                    let backstop = supervisor.limits().backstop;
                    return watch_until(split, seen.now + backstop);
                }
                Err(Unsuspended::Over) => {
                    if unwatch(split, id) {
                        return;
                    }
                }
            },
        }
        // Looking again is part of the same wake-up.
        wake = Wake::Bell;
    }
    // Things change as fast as we look: the others must get on.
    watch_until(split, clock::now() + RETRY);
}

/// The level of the poll, and one, if suspending it is a guess; else 0.
fn guessed_level(seen: &Observation) -> u8 {
    match seen.poll {
        Some(poll) if seen.is_guess() => poll.level + 1,
        _ => 0,
    }
}

fn is_users_guard(poll: Poll) -> bool {
    matches!(poll.guard, Guard::User(_))
}

/// What there is to see.
fn observe(split: &Split) -> Observation {
    let now = clock::now();
    let ticks = clock::ticks();
    let at =
        |then: u64| now.saturating_sub(clock::nanos(clock::from_ticks(ticks.saturating_sub(then))));
    let worker = split.worker();
    let watch = split.watch();
    let current = split.current.load(Acquire);
    let seat = &split.seats[current];
    let level = worker.executor.running_level();
    let poll = match (seat.started.load(Relaxed), level) {
        (0, _) | (_, None) => None,
        (started, Some(level)) => {
            let resumed = seat.resumed.load(Relaxed);
            let guard = match seat.guarded_since() {
                _ if seat.permit.in_use() => Guard::Runtime,
                0 => Guard::None,
                since => Guard::User(since),
            };
            Some(Poll {
                started: at(started),
                resumed: (resumed != 0).then(|| at(resumed)),
                entitled: seat.entitled.load(Relaxed),
                level: level.get(),
                guard,
            })
        }
    };
    let mut hidden = 0;
    if watch.has_arrivals() {
        hidden |= watch.levels_in_flight();
    }
    if worker
        .timers
        .next_deadline()
        .is_some_and(|deadline| deadline <= now)
    {
        // Whom it wakes is not known: it may be anybody.
        hidden = u64::MAX;
    }
    Observation {
        now,
        poll,
        ready: worker.executor.bitmap(),
        hidden,
        free_seat: split.roles().free().is_some(),
        worth: Worth::from_bits(split.worth.load(Relaxed)),
        hits: split.hits.load(Relaxed),
    }
}

fn account(split: &Split, supervisor: &Supervisor) {
    let (looks, useless) = supervisor.looks();
    split.looks.store(looks, Relaxed);
    split.useless.store(useless, Relaxed);
    split.slice.store(supervisor.slice(), Relaxed);
    let (now, ticks) = (clock::now(), clock::ticks());
    let in_ticks = |then: u64| match then.saturating_sub(now) {
        0 => 0,
        ahead => ticks + clock::to_ticks(Duration::from_nanos(ahead)),
    };
    split
        .deaf_until
        .store(in_ticks(supervisor.deaf_until()), Relaxed);
    split
        .precise_from
        .store(in_ticks(supervisor.precautions_from()), Relaxed);
}

/// Nobody waits. Says so, and looks once more whether that is still true; if not, false.
fn rest(split: &Split, id: PollId, seen: &Observation) -> bool {
    if !unwatch(split, id) {
        return false;
    }
    if seen.poll.is_none() {
        // A poll that begins now looks after itself.
        return true;
    }
    let deaf = split.deaf_until.load(Relaxed);
    if deaf > clock::ticks() {
        // Somebody may come while we do not listen.
        let pause = clock::nanos(clock::from_ticks(deaf.saturating_sub(clock::ticks())));
        watch_until(split, clock::now() + pause);
        return true;
    }
    split.watch().unmask();
    split.worker().executor.set_attended(true);
    fence(SeqCst);
    let deadline = next_deadline(split);
    if deadline < split.armed.load(Relaxed) {
        split.set_timer(deadline);
    }
    let again = observe(split);
    again.ready == seen.ready && again.hidden == seen.hidden
}

/// A poll by its seat and the ticks at which it began; 0: between polls.
type PollId = (usize, u64);

fn poll_id(split: &Split) -> PollId {
    let current = split.current.load(Acquire);
    (current, split.seats[current].started.load(Acquire))
}

/// From now on polls look after themselves as they begin. False: another one than `seen` has begun meanwhile, and did not.
fn unwatch(split: &Split, seen: PollId) -> bool {
    split.watched.store(false, SeqCst);
    // It raises `started`, then looks at `watched`.
    heavy_barrier();
    let now = poll_id(split);
    now == seen || now.1 == 0
}

/// The next timer of the vCPU that is not due yet.
fn next_deadline(split: &Split) -> u64 {
    let deadline = split.worker().timers.next_deadline().unwrap_or(NEVER);
    // What is due has been seen, and is less urgent than what runs.
    if deadline > clock::now() {
        deadline
    } else {
        NEVER
    }
}

/// Whoever is waiting has to wait a little longer; something more urgent shall not. True: something has come.
fn listen_for_the_urgent(split: &Split, supervisor: &Supervisor, seen: &Observation) -> bool {
    let is_deaf = supervisor.deaf_until() > seen.now;
    if is_deaf || seen.poll.is_none_or(|poll| poll.level == 0) {
        return false;
    }
    split.watch().unmask();
    split.worker().executor.set_attended(true);
    fence(SeqCst);
    let again = observe(split);
    (again.ready, again.hidden) != (seen.ready, seen.hidden)
}

fn watch_until(split: &Split, at: u64) {
    split.watched.store(true, Relaxed);
    split.set_timer(at.min(next_deadline(split)));
}
