//! A preemptible vCPU: the state that its threads share, and how the vCPU ends. `start.rs` starts
//! it, and [`super`] explains the terms.
//!
//! The [`Worker`] and `Thread::set_aside`, with everything in them, belong to the *current* thread
//! while it uses its permit. The watcher only reads their atomics, unless it has revoked the
//! current thread's permit. All other state is atomic, behind a lock, or set once before the
//! threads start.
//!
//! The *giver* of the vCPU is the current thread, or the watcher when it has revoked that thread's
//! permit.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `worker`, `index`, `settings`, `announcer`, `watch` | set before the threads start | all |
//! | `roles`, `starter` | any thread of the vCPU, under their locks | the same |
//! | `threads` | see [`Thread`] | all |
//! | `current`, `handover.displaced` | the giver | all |
//! | `handover.next_up` | the giver; the thread that wakes the next one | all |
//! | `handover.turn` | the watcher, and the giver | the giver |
//! | `tally` | the giver; a blocked thread that wakes up, or the watcher for it | all |
//! | `pinned.queue` | the current thread | the current thread |
//! | `pinned.levels` | the current thread | the watcher, the end of `block_on` |
//! | `service` | the current thread requests, the ring's thread answers | both |
//! | `idle` | the current thread begins to wait, any thread ends the wait | the same |
//! | `alarm`: the timer | the current thread and the watcher | both |
//! | `alarm`: the rest | the watcher | the current thread |
//! | `orders.permits_waived` | the watcher | suspended threads, in their handler |
//! | `orders.ended` | the thread that ends the vCPU, once | the watcher |
//! | `counts` | the watcher | metrics |

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use upshift_board as board;
use upshift_core::Running;
use upshift_core::preempt::{LookCosts, MAX_SUSPENSION, Rule, TURN_LENGTH};
use upshift_ring::RingWatch;

use super::PreemptionStats;
use super::alarm::Alarm;
use super::current::{Registered, with_current};
use super::idle::Idle;
use super::roles::{FIRST, MAIN, NONE, Role, Roles};
use super::service::Service;
use super::slice::BatchPolicy;
use super::starter::Starter;
use super::thread::{Command, Thread};
use crate::board::Announcer;
use crate::context;
use crate::host::{Linux, PreemptibleVcpu};
use crate::preempt::interrupt;
use crate::preempt::permit::Critical;
use crate::time::clock;
use crate::worker::Worker;

/// Number of spare threads that are started with the vCPU.
pub(super) const SPARES: usize = 2;

/// Settings of the preemptible vCPUs of a runtime.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(super) rule: Rule,
    pub(super) looks: LookCosts,
    /// Largest number of threads of a vCPU, the current one included.
    pub(super) max_threads: usize,
    /// Ticks after a wait during which a vCPU has time to reap again before a poll.
    pub(super) spare_time: u64,
    /// [`Rule::cost`] and [`MAX_SUSPENSION`] in ticks.
    pub(super) cost_ticks: u64,
    pub(super) max_suspension_ticks: u64,
}

impl Settings {
    pub(crate) fn new(rule: Rule, looks: LookCosts, threads: usize) -> Settings {
        Settings {
            rule,
            looks,
            max_threads: threads + SPARES,
            spare_time: clock::to_ticks(Duration::from_nanos(TURN_LENGTH)),
            cost_ticks: clock::to_ticks(Duration::from_nanos(rule.cost)),
            max_suspension_ticks: clock::to_ticks(Duration::from_nanos(MAX_SUSPENSION)),
        }
    }

    pub(crate) fn quantum(&self) -> Duration {
        Duration::from_nanos(self.rule.quantum)
    }
}

/// A preemptible vCPU.
pub(crate) struct Preemptible {
    /// The vCPU's executor and ring. The worker is not moved while threads serve the vCPU.
    worker: *const Worker,
    pub(super) index: usize,
    pub(super) settings: Settings,
    pub(super) starter: Starter,
    pub(super) threads: Box<[Thread]>,
    roles: Mutex<Roles>,
    pub(super) current: AtomicUsize,
    pub(super) handover: HandOver,
    pub(super) tally: Tally,
    pub(super) pinned: Pinned,
    pub(super) service: Service,
    /// Announces arrivals on the board, for the watcher; `None` if there is no daemon.
    pub(super) announcer: Option<Arc<Announcer>>,
    watch: RingWatch,
    pub(super) alarm: Alarm,
    pub(super) orders: Orders,
    pub(super) idle: Idle,
    pub(super) counts: Counts,
}

/// The threads that serve next.
pub(super) struct HandOver {
    /// The thread that has been made current and is to be woken, or NONE.
    pub(super) next_up: AtomicUsize,
    /// The thread whose suspended poll is to be resumed next, before all other work, or NONE.
    pub(super) turn: AtomicUsize,
    /// The thread whose poll has made room for the turn of another poll while every thread held a
    /// poll, or NONE.
    pub(super) displaced: AtomicUsize,
    pub(super) displaced_level: AtomicU8,
}

/// Numbers of polls that are suspended and blocked now.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) suspended: AtomicUsize,
    pub(super) blocked: AtomicUsize,
}

/// Pinned coroutines that have been picked and wait for the thread that polls them.
#[derive(Default)]
pub(super) struct Pinned {
    pub(super) queue: Shareable<UnsafeCell<VecDeque<Running<'static, Linux>>>>,
    pub(super) levels: AtomicU64,
}

/// Flags that apply to all threads of the vCPU.
#[derive(Default)]
pub(super) struct Orders {
    /// Set while suspended threads run without their permits.
    pub(super) permits_waived: AtomicBool,
    pub(super) ended: AtomicBool,
}

/// Counters for the metrics.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) wakeups: AtomicU64,
    pub(super) spurious_wakeups: AtomicU64,
    pub(super) set_aside: AtomicU64,
}

// SAFETY: no data are accessed by two threads at once. By the rules of this module one thread at a
// time uses `worker` and `pinned.queue`, except for the parts of the worker that are `Sync`.
unsafe impl Send for Preemptible {}
// SAFETY: as above.
unsafe impl Sync for Preemptible {}

/// A value whose users are ordered by the rules of this module.
#[derive(Default)]
pub(super) struct Shareable<T>(pub(super) T);

impl Preemptible {
    /// Creates the vCPU of `worker`, which only the calling thread serves so far.
    ///
    /// # Safety
    /// The worker is not moved or dropped until [`Preemptible::end`] has returned true.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub(super) unsafe fn new(
        worker: &Worker,
        cpu: usize,
        settings: Settings,
    ) -> io::Result<Arc<Preemptible>> {
        let index = worker.executor().index();
        let max_threads = settings.max_threads;
        Ok(Arc::new(Preemptible {
            worker,
            index,
            starter: Starter::new(cpu, &worker.shared().settings.name, index),
            threads: (0..max_threads).map(|_| Thread::new()).collect(),
            roles: Mutex::new(Roles::new(max_threads)),
            current: AtomicUsize::new(FIRST),
            handover: HandOver {
                next_up: AtomicUsize::new(NONE),
                turn: AtomicUsize::new(NONE),
                displaced: AtomicUsize::new(NONE),
                displaced_level: AtomicU8::new(0),
            },
            tally: Tally::default(),
            pinned: Pinned::default(),
            service: Service::new(),
            announcer: worker.post().map(|post| post.announcer().clone()),
            // Each ring has one watch.
            watch: match worker.post() {
                Some(post) => post.watch().clone(),
                None => worker.ring().watch()?,
            },
            alarm: Alarm::new()?,
            orders: Orders::default(),
            idle: Idle::new(),
            counts: Counts::default(),
            settings,
        }))
    }

    /// Starts another spare thread, unless the vCPU has its largest number of threads.
    pub(super) fn start_spare(self: &Arc<Preemptible>) -> io::Result<()> {
        self.start_spare_after(|| ())
    }

    /// Starts another spare thread, which calls `prelude` before it waits to be given the vCPU.
    ///
    /// The new thread may be made current as soon as this function returns. Its kernel id is stored
    /// by then, so the watcher sees if it sleeps while it starts, on a lock that a suspended poll
    /// holds.
    fn start_spare_after(
        self: &Arc<Preemptible>,
        prelude: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let number = self.roles().count();
        if number == self.threads.len() {
            return Ok(());
        }
        let vcpu = self.clone();
        let id = self.starter.start(&format!("worker-{number}"), move || {
            prelude();
            vcpu.serve_as_spare(number);
        })?;
        self.threads[number].id.store(id, SeqCst);
        self.roles().add();
        Ok(())
    }

    pub(super) fn enlist(&self, role: board::Role) {
        if let Some(membership) = &self.worker().shared().membership
            && self.announcer.is_some()
        {
            membership.enlist(self.index, role);
        }
    }

    fn serve_as_spare(&self, number: usize) {
        self.enlist(board::Role::Worker);
        let thread = &self.threads[number];
        if interrupt::claim().is_err() {
            while self.roles().count() <= number {
                // The thread is being added.
                thread::yield_now();
            }
            // A thread that has already been made current serves nevertheless. Its polls are
            // stopped by the permit alone, without the signal.
            if self.roles().make_absent(number) {
                return;
            }
        }
        let _registered = Registered::begin(self, number);
        loop {
            let command = {
                let _batch = BatchPolicy::begin();
                thread.wait_for_command()
            };
            if command == Command::End {
                return;
            }
            let _serving = context::serve(self.worker());
            self.serve(number, &|| false);
        }
    }

    /// Polls pinned coroutines on the calling thread, which built the runtime, until `done` returns
    /// true. `done` is called when there is nothing to poll, and then every millisecond if
    /// `checks_periodically`.
    ///
    /// # Errors
    /// If the thread has not [claimed](interrupt::claim) its signal and cannot do so. Nothing was
    /// polled then.
    pub(crate) fn serve_as_main(
        &self,
        checks_periodically: bool,
        done: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        interrupt::claim()?;
        let worker = self.worker();
        let _registered = Registered::begin(self, MAIN);
        let mut hooks = None;
        let thread = &self.threads[MAIN];
        self.roles().set_main(true);
        // Pinned coroutines that waited for this thread can be polled now. They are in no ready
        // queue, so the kick ends a wait of the vCPU, and the watcher is notified to look at a poll
        // that is under way.
        upshift_core::Host::kick(worker.shared().domain.host(), self.index);
        self.watch.notify();
        loop {
            if thread.take_command().is_some() {
                // Entered only while the thread is current, because only then may it start
                // coroutines on the vCPU.
                let _entered = context::enter(worker);
                hooks.get_or_insert_with(|| worker.shared().thread_hooks.begin());
                self.serve_main();
            } else if done() && self.roles().set_main(false) {
                return Ok(());
            } else {
                thread.wait_once(checks_periodically);
            }
        }
    }

    pub(super) fn roles(&self) -> MutexGuard<'_, Roles> {
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rule(&self) -> Rule {
        self.settings.rule
    }

    /// Returns the worker. Only the current thread may use all of it; other threads may use the
    /// parts that are `Sync`.
    pub(super) fn worker(&self) -> &Worker {
        // SAFETY: the pointer is valid, because the caller of `new` has promised that the worker is
        // neither moved nor dropped.
        unsafe { &*self.worker }
    }

    /// Returns the ticks for which the vCPU has slept by the tick `now`.
    pub(super) fn parked(&self, now: u64) -> u64 {
        self.worker().meter().parked(now)
    }

    pub(super) fn watch(&self) -> &RingWatch {
        &self.watch
    }

    pub(super) fn notify_watcher() {
        with_current(|vcpu, _| vcpu.watch.notify());
    }

    /// Returns the time that polls have to end when a runtime is dropped.
    pub(crate) fn grace() -> Duration {
        Duration::from_secs(1)
    }

    pub(crate) fn shared_worker(&self) -> &Worker {
        self.worker()
    }
}

impl PreemptibleVcpu for Preemptible {
    fn run(&self, done: &dyn Fn() -> bool) {
        let worker = self.worker();
        if interrupt::claim().is_err() {
            return;
        }
        // User hooks run within a use of the permit, as everything except polls does.
        let _registered = Registered::begin(self, FIRST);
        let _serving = context::serve(worker);
        let thread = &self.threads[FIRST];
        while !self.serve(FIRST, done) {
            // Other threads serve, and request system calls on the ring from this thread.
            while thread.take_command().is_none() {
                self.block_signal_and_wait_in_ring(|| thread.has_command());
            }
        }
    }

    fn waiting_pinned_levels(&self) -> u64 {
        let levels = self.pinned.levels.load(Acquire);
        if levels != 0 && self.roles().role(MAIN) == Role::Main {
            levels
        } else {
            0
        }
    }

    fn has_main_thread(&self) -> bool {
        self.index == 0
    }

    fn polls_pinned_here(&self) -> bool {
        // If the thread's permit has been revoked but the thread still runs, it waits for the
        // permit here.
        let _critical = Critical::enter();
        let mut is_main = false;
        with_current(|vcpu, number| is_main = ptr::eq(vcpu, self) && number == MAIN);
        is_main && self.has_main_thread() && self.current.load(Acquire) == MAIN
    }

    fn has_stopped_polls(&self) -> bool {
        self.tally.suspended.load(Acquire) != 0 || self.tally.blocked.load(Acquire) != 0
    }

    fn end(&self) -> bool {
        let is_over = !self.has_stopped_polls();
        self.orders.ended.store(true, SeqCst);
        self.watch.notify();
        let host = self.worker().shared().domain.host();
        host.set_watch(self.index, None);
        host.set_preemptible(self.index, None);
        for thread in &self.threads[1..] {
            thread.send(Command::End);
        }
        self.starter.end(is_over);
        is_over
    }

    fn wake_idle(&self) {
        self.end_idle();
    }

    fn add_to(&self, stats: &mut PreemptionStats) {
        stats.vcpus += 1;
        stats.blocked += self.tally.blocked.load(Relaxed);
        stats.wakeups += self.counts.wakeups.load(Relaxed);
        stats.spurious_wakeups += self.counts.spurious_wakeups.load(Relaxed);
        stats.set_aside += self.counts.set_aside.load(Relaxed);
        stats.services += self.service.call_count.load(Relaxed);
    }
}

impl Preemptible {
    /// Records that the calling thread, which is not current, has woken up in its blocked poll.
    pub(super) fn record_return_from_sleep(&self, number: usize) {
        let mut roles = self.roles();
        self.unblock(&mut roles, number);
    }

    /// Queues the poll of a blocked thread, which has woken up, as a suspended one.
    pub(super) fn unblock(&self, roles: &mut Roles, number: usize) {
        if roles.role(number) != Role::Blocked {
            return;
        }
        let thread = &self.threads[number];
        let Some(set_aside) = thread.set_aside().take() else {
            return;
        };
        roles.unblock(number);
        thread.blocked.store(false, SeqCst);
        thread.stopped_at.store(clock::now(), Relaxed);
        thread.coroutine.store(set_aside.id().to_u64(), Release);
        self.tally.suspended.fetch_add(1, SeqCst);
        self.tally.blocked.fetch_sub(1, SeqCst);
        set_aside.requeue();
        self.end_idle();
    }
}

#[cfg(test)]
mod tests {
    use std::hint::spin_loop;
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::{Level, Preemption, Runtime};

    fn spin_until(seconds: u64, condition: impl Fn() -> bool) -> bool {
        let began = Instant::now();
        while !condition() && began.elapsed() < Duration::from_secs(seconds) {
            spin_loop();
        }
        condition()
    }

    /// A thread becomes current while it starts and waits for a lock that a suspended poll holds.
    /// In practice this may be the allocator's lock. Every thread of the vCPU then sleeps, although
    /// a coroutine is ready. The watcher must notice this, and let the suspended polls run.
    #[test]
    fn a_thread_that_starts_behind_a_lock_of_a_suspended_poll_does_not_stop_its_vcpu() {
        static LOCK: Mutex<()> = Mutex::new(());
        let preemption = Runtime::builder().vcpus(1).preemption(Preemption::Required);
        let runtime = match preemption.build() {
            Ok(runtime) => runtime,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let mut vcpu = None;
        runtime.block_on(async { with_current(|here, _| vcpu = Some(here.to_arc())) });
        let vcpu = vcpu.unwrap();
        let handle = runtime.handle();
        let (is_held, may_end) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let spawn = |level: u8, poll: Box<dyn FnOnce() + Send>| {
            let level = Level::new(level).unwrap();
            handle.spawn(async { poll() }, level).unwrap().detach();
        };
        // This poll holds the lock until it may release it, and is suspended meanwhile.
        let (holds, until) = (is_held.clone(), may_end.clone());
        spawn(
            30,
            Box::new(move || {
                let guard = LOCK.lock();
                holds.store(true, SeqCst);
                spin_until(120, || until.load(SeqCst));
                drop(guard);
            }),
        );
        assert!(spin_until(20, || is_held.load(SeqCst)));
        let last_thread = vcpu.roles().count();
        vcpu.start_spare_after(|| drop(LOCK.lock())).unwrap();
        // One more poll for each of the other threads; each interrupts the poll before it.
        let mut level = 29;
        let is_current = |thread: usize| vcpu.current.load(SeqCst) == thread;
        while !is_current(last_thread) && level > 1 {
            let (began, until) = (Arc::new(AtomicBool::new(false)), may_end.clone());
            let begins = began.clone();
            spawn(
                level,
                Box::new(move || {
                    begins.store(true, SeqCst);
                    spin_until(120, || until.load(SeqCst));
                }),
            );
            spin_until(20, || is_current(last_thread) || began.load(SeqCst));
            level -= 1;
        }
        assert!(is_current(last_thread), "the last thread is not reached");
        assert!(
            spin_until(20, || vcpu.threads[last_thread].is_asleep()),
            "the thread that starts does not sleep behind the lock"
        );
        let (sender, receiver) = mpsc::channel();
        spawn(0, Box::new(move || _ = sender.send(())));
        may_end.store(true, SeqCst);
        let polled = receiver.recv_timeout(Duration::from_secs(60));
        assert!(polled.is_ok(), "the urgent coroutine is not polled");
    }
}
