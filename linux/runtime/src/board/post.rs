//! What a vCPU tells the board, from the thread that serves it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

use upshift_board::{NOTHING, Standing, Vcpu};
use upshift_ring::Watch;

use super::dispatcher::{Dispatcher, Eyes};
use super::membership::Membership;
use super::yielding::Yielding;
use crate::time::clock;

/// Levels that were run within so long count as what a sleeper may wake up for; twice that at most.
const RECENTLY: Duration = Duration::from_secs(1);

/// Levels that a vCPU has lately run: what may come again. Waits that take for ever (for a signal, say) are not among them
/// after the first second, whatever their level; should one end all the same, the vCPU finds out when it has the CPU.
#[derive(Debug, Default)]
pub(super) struct Expected(AtomicU64);

impl Expected {
    /// The most urgent level that may arrive in the ring.
    pub(super) fn most_urgent(&self, watch: &Watch) -> u8 {
        (self.0.load(Relaxed) & watch.levels_in_flight()).trailing_zeros() as u8
    }
}

/// See the module. One per vCPU; its thread alone uses it.
pub(crate) struct Post {
    vcpu: Vcpu,
    watch: Watch,
    membership: Arc<Membership>,
    eyes: Arc<Eyes>,
    /// Ends before the vCPU does. A preemptible one has none.
    _dispatcher: Option<Dispatcher>,
    /// What is published.
    bitmap: Cell<u64>,
    running: Cell<u8>,
    potential: Cell<u8>,
    /// Levels polled in this period and in the one before.
    recent: Cell<[u64; 2]>,
    period_ends: Cell<u64>,
    expected: Arc<Expected>,
    yielding: RefCell<Yielding>,
}

impl Post {
    pub(super) fn new(
        vcpu: Vcpu,
        watch: Watch,
        membership: Arc<Membership>,
        eyes: Arc<Eyes>,
        dispatcher: Option<Dispatcher>,
        expected: Arc<Expected>,
    ) -> Post {
        Post {
            vcpu,
            watch,
            membership,
            eyes,
            _dispatcher: dispatcher,
            bitmap: Cell::new(0),
            running: Cell::new(NOTHING),
            potential: Cell::new(NOTHING),
            recent: Cell::new([0; 2]),
            period_ends: Cell::new(0),
            expected,
            yielding: RefCell::default(),
        }
    }

    /// What a watcher looks at in place of a dispatcher.
    pub(crate) fn eyes(&self) -> &Arc<Eyes> {
        &self.eyes
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The next poll is of `level`, and `bitmap` is what waits behind it. `now` in ticks.
    #[inline]
    pub(crate) fn polls(&self, bitmap: u64, level: u8, now: u64) {
        let [recent, before] = self.recent.get();
        let with = recent | 1 << (level & 63);
        if with != recent || now > self.period_ends.get() {
            self.recent.set([with, before]);
            self.expect(now);
        }
        if self.vcpu.line().arrived().load(Relaxed) != 0 {
            self.take_in();
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
            self.settle(potential);
        }
    }

    /// The vCPU waits from now on.
    pub(crate) fn waits(&self) {
        let [recent, before] = self.recent.get();
        let awaited = (recent | before).trailing_zeros() as u8;
        let line = self.vcpu.line();
        // What comes does not outrank what is published, and this thread is woken by it.
        self.watch.mask();
        line.set_awaited(awaited);
        line.arrived().store(0, Relaxed);
        self.bitmap.set(0);
        line.bitmap().store(0, Relaxed);
        self.running.set(NOTHING);
        line.set_running(NOTHING);
        if awaited != self.potential.replace(awaited) {
            self.settle(awaited);
        }
    }

    /// The most urgent level has changed: the order on this CPU may have.
    #[cold]
    fn settle(&self, potential: u8) {
        self.vcpu.line().count_turn();
        if self.vcpu.settle().unwrap_or(false) {
            self.membership.count_ring();
        }
        // Demoted, this thread would not notice what comes; elevated or alone it does.
        let may_come = self.expected.most_urgent(&self.watch);
        if may_come < potential && self.vcpu.standing() != Standing::ALONE {
            self.watch.unmask();
            fence(SeqCst);
            if self.watch.has_arrivals() {
                let _ = self.vcpu.arrive(may_come);
            }
        } else {
            self.watch.mask();
        }
    }

    /// What a dispatcher has announced has been reaped, or will be.
    #[cold]
    fn take_in(&self) {
        let arrived = self.vcpu.line().arrived();
        let announced = arrived.swap(0, SeqCst);
        if self.watch.has_arrivals() {
            arrived.fetch_or(announced, SeqCst);
        }
    }

    #[cold]
    fn expect(&self, now: u64) {
        let [mut recent, mut before] = self.recent.get();
        if now > self.period_ends.get() {
            self.period_ends.set(now + clock::to_ticks(RECENTLY));
            (recent, before) = (0, recent);
            self.recent.set([recent, before]);
        }
        self.expected.0.store(recent | before, Relaxed);
    }

    /// Is another process to go first on this CPU, if the most urgent here is of `level`? False while it is this one's turn to work, see `yielding`.
    #[inline]
    pub(crate) fn is_outranked(&self, level: u8) -> bool {
        self.membership.is_cooperative() && level < NOTHING && self.vcpu.is_outranked(level)
    }

    /// Gives way now? Says so to the board. `now` in ns.
    pub(crate) fn gives_way(&self, bitmap: u64, level: u8, now: u64) -> bool {
        let gives_way = self.yielding.borrow_mut().gives_way(now);
        if gives_way {
            self.membership.count_giving_way();
            self.publish(bitmap | 1 << (level & 63), NOTHING);
        }
        gives_way
    }

    /// Does no other process compete for the CPU? One load.
    pub(crate) fn is_alone(&self) -> bool {
        self.vcpu.standing() == Standing::ALONE
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.watch.mask();
        let line = self.vcpu.line();
        line.bitmap().store(0, Relaxed);
        line.arrived().store(0, Relaxed);
        line.set_running(NOTHING);
        line.set_awaited(NOTHING);
        // If the daemon is not told, its tick finds it.
        let _ = self.vcpu.settle();
    }
}
