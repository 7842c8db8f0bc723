//! Publishes the levels of a vCPU on the board, which is memory shared with the daemon. The thread
//! that serves the vCPU does this.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

use upshift_board::{NO_LEVEL, Standing, Vcpu};
use upshift_ring::RingWatch;

use super::dispatcher::{Announcer, Dispatcher};
use super::membership::Membership;
use super::yielding::Yielding;
use crate::time::clock;

/// Length of a period. A sleeping vCPU expects to wake up for levels that it has polled in the
/// present period or the one before.
const PERIOD: Duration = Duration::from_secs(1);

/// Levels that a vCPU has recently run, and that may therefore arrive again. The level of an
/// endless wait, for example for a signal, leaves this set after a second or two. If such a wait
/// then ends, the vCPU notices only when it next has the CPU.
#[derive(Debug, Default)]
pub(super) struct Expected(AtomicU64);

impl Expected {
    /// Returns the most urgent level that may arrive in the ring.
    pub(super) fn most_urgent(&self, watch: &RingWatch) -> u8 {
        (self.0.load(Relaxed) & watch.levels_in_flight()).trailing_zeros() as u8
    }
}

/// Publishes the levels of a vCPU. Only the vCPU's thread uses it.
pub(crate) struct Post {
    vcpu: Vcpu,
    watch: RingWatch,
    membership: Arc<Membership>,
    announcer: Arc<Announcer>,
    /// Ends before the vCPU does. `None` if the vCPU is preemptible.
    _dispatcher: Option<Dispatcher>,
    /// The published levels of ready coroutines, and of the poll.
    bitmap: Cell<u64>,
    running: Cell<u8>,
    /// The published most urgent level: that of the poll, a ready coroutine or a possible arrival.
    potential: Cell<u8>,
    /// Levels polled in the present period and in the period before, as bitmaps.
    recent: Cell<[u64; 2]>,
    /// End of the present period, in ticks.
    period_end: Cell<u64>,
    expected: Arc<Expected>,
    yielding: RefCell<Yielding>,
}

impl Post {
    pub(super) fn new(
        vcpu: Vcpu,
        watch: RingWatch,
        membership: Arc<Membership>,
        announcer: Arc<Announcer>,
        dispatcher: Option<Dispatcher>,
        expected: Arc<Expected>,
    ) -> Post {
        Post {
            vcpu,
            watch,
            membership,
            announcer,
            _dispatcher: dispatcher,
            bitmap: Cell::new(0),
            running: Cell::new(NO_LEVEL),
            potential: Cell::new(NO_LEVEL),
            recent: Cell::new([0; 2]),
            period_end: Cell::new(0),
            expected,
            yielding: RefCell::default(),
        }
    }

    pub(crate) fn announcer(&self) -> &Arc<Announcer> {
        &self.announcer
    }

    pub(crate) fn watch(&self) -> &RingWatch {
        &self.watch
    }

    /// Publishes the level of the next poll, and the `bitmap` of the levels of other ready
    /// coroutines. `now` is in ticks.
    #[inline]
    pub(crate) fn publish_poll(&self, bitmap: u64, level: u8, now: u64) {
        let [recent, previous] = self.recent.get();
        let updated = recent | 1 << (level & 63);
        if updated != recent || now > self.period_end.get() {
            self.recent.set([updated, previous]);
            self.update_expected(now);
        }
        if self.vcpu.line().arrived().load(Relaxed) != 0 {
            self.withdraw_announcement();
        }
        self.publish(bitmap, level);
    }

    #[inline]
    fn publish(&self, bitmap: u64, level: u8) {
        if bitmap != self.bitmap.get() {
            self.bitmap.set(bitmap);
            self.vcpu.line().bitmap().store(bitmap, Relaxed);
        }
        if level != self.running.get() {
            self.running.set(level);
            self.vcpu.line().set_running(level);
        }
        let potential = level.min(bitmap.trailing_zeros() as u8);
        if potential != self.potential.get() {
            self.potential.set(potential);
            self.publish_potential(potential);
        }
    }

    /// Publishes that the vCPU is about to sleep, and the most urgent level that it expects to wake
    /// up for.
    pub(crate) fn publish_wait(&self) {
        let [recent, previous] = self.recent.get();
        let awaited = (recent | previous).trailing_zeros() as u8;
        let line = self.vcpu.line();
        // The watch is masked, because arrivals cannot outrank the published level, and wake this
        // thread anyway.
        self.watch.mask();
        line.set_awaited(awaited);
        line.arrived().store(0, Relaxed);
        self.bitmap.set(0);
        line.bitmap().store(0, Relaxed);
        self.running.set(NO_LEVEL);
        line.set_running(NO_LEVEL);
        if awaited != self.potential.replace(awaited) {
            self.publish_potential(awaited);
        }
    }

    /// Publishes a new most urgent level, which may change the order on this CPU.
    #[cold]
    fn publish_potential(&self, potential: u8) {
        self.vcpu.line().count_turn();
        if self.vcpu.settle().unwrap_or(false) {
            self.membership.count_doorbell();
        }
        // Makes arrivals wake the dispatcher if this thread may be demoted, because a demoted
        // thread would not notice them. An elevated thread, or the only one on its CPU, notices
        // them itself.
        let most_urgent_expected = self.expected.most_urgent(&self.watch);
        if most_urgent_expected < potential && self.vcpu.standing() != Standing::UNCONTESTED {
            self.watch.unmask();
            fence(SeqCst);
            if self.watch.has_arrivals() {
                let _ = self.vcpu.arrive(most_urgent_expected);
            }
        } else {
            self.watch.mask();
        }
    }

    /// Withdraws an announcement, because its arrivals have been reaped. If there are arrivals
    /// again, the announcement is kept.
    #[cold]
    fn withdraw_announcement(&self) {
        let arrived = self.vcpu.line().arrived();
        let announced = arrived.swap(0, SeqCst);
        if self.watch.has_arrivals() {
            arrived.fetch_or(announced, SeqCst);
        }
    }

    #[cold]
    fn update_expected(&self, now: u64) {
        let [mut recent, mut previous] = self.recent.get();
        if now > self.period_end.get() {
            self.period_end.set(now + clock::to_ticks(PERIOD));
            (recent, previous) = (0, recent);
            self.recent.set([recent, previous]);
        }
        self.expected.0.store(recent | previous, Relaxed);
    }

    /// Returns whether another process goes first on this CPU if the most urgent level here is
    /// `level`. This process may continue nevertheless; see [`gives_way`](Post::gives_way).
    #[inline]
    pub(crate) fn is_outranked(&self, level: u8) -> bool {
        self.membership.is_cooperative() && level < NO_LEVEL && self.vcpu.is_outranked(level)
    }

    /// Returns whether the vCPU, which is outranked, must give way now (see `yielding`), and if so,
    /// publishes that it does. `now` is in ns.
    pub(crate) fn gives_way(&self, bitmap: u64, level: u8, now: u64) -> bool {
        let gives_way = self.yielding.borrow_mut().gives_way(now);
        if gives_way {
            self.membership.count_giving_way();
            self.publish(bitmap | 1 << (level & 63), NO_LEVEL);
        }
        gives_way
    }

    /// Returns whether no other process competes for the CPU. Costs one load.
    pub(crate) fn is_alone(&self) -> bool {
        self.vcpu.standing() == Standing::UNCONTESTED
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.watch.mask();
        let line = self.vcpu.line();
        line.bitmap().store(0, Relaxed);
        line.arrived().store(0, Relaxed);
        line.set_running(NO_LEVEL);
        line.set_awaited(NO_LEVEL);
        // A failure is ignored, because the daemon finds the change at its next tick.
        let _ = self.vcpu.settle();
    }
}
