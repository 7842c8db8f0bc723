//! Names of work, which stalls, panics, timelines and `upshift top` show instead of spawn
//! locations.
//!
//! ```text
//!  named(name, future) ─► number in the table of the runtime: counters, one entry per name
//!  each poll of it     ─► cell of the polling thread: vCPU, coroutine, level, number
//!                            │ under a stamp: odd while it is written
//!                            ▼
//!  watchdog, metrics   ─► the thread whose cell has the vCPU and the coroutine of the poll
//! ```
//!
//! A poll begins and ends on one thread, even if it is suspended in between, so each thread needs
//! one cell. The cell keeps its content after the named future has returned, because the end of the
//! poll is reported with the name of the last named work in it. The cell is a seqlock: writers
//! never wait, and a reader that sees an odd stamp, or a stamp that changes, gets no name.
//!
//! A runtime keeps at most [`MAX_NAMES`] names; work with a further name is counted as [`OTHERS`].
//! Work without a name costs nothing. Each poll of named work costs two readings of the clock,
//! about 20 stores and two atomic additions; the first poll also costs a lookup in a hash table.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::task::{Context, Poll};

use upshift_core::{CoroutineId, Level, TickHistogram, Vcpu};

use crate::context;
use crate::host::{self, Linux};
use crate::metrics::{Histogram, NamedMetrics};
use crate::preempt::permit::Critical;
use crate::time::clock;

/// Largest number of names that a runtime distinguishes, [`OTHERS`] included.
const MAX_NAMES: usize = 1024;
/// The common name of all work whose names no longer fit.
const OTHERS: &str = "(other names)";

/// The counters of all work of one name; times are in ticks.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) name: Arc<str>,
    number: u32,
    begun: AtomicU64,
    ended: AtomicU64,
    polls: AtomicU64,
    polling: AtomicU64,
    longest_poll: AtomicU64,
    level: AtomicU64,
    /// Ticks from the first poll to the end of the work.
    latency: TickHistogram,
}

#[derive(Default)]
pub(crate) struct Names {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    numbers: HashMap<Arc<str>, u32>,
    works: Vec<Arc<Work>>,
}

impl Table {
    fn get(&self, name: &str) -> Option<&Arc<Work>> {
        self.works.get(*self.numbers.get(name)? as usize)
    }

    fn add(&mut self, name: &str) -> Arc<Work> {
        let name = if self.works.len() + 1 < MAX_NAMES {
            name
        } else {
            OTHERS
        };
        if let Some(work) = self.get(name) {
            return work.clone();
        }
        let number = self.works.len() as u32;
        let work = Arc::new(Work {
            name: name.into(),
            number,
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            polls: AtomicU64::new(0),
            polling: AtomicU64::new(0),
            longest_poll: AtomicU64::new(0),
            level: AtomicU64::new(0),
            latency: TickHistogram::default(),
        });
        self.numbers.insert(work.name.clone(), number);
        self.works.push(work.clone());
        work
    }
}

impl Names {
    fn intern(&self, name: &str) -> Arc<Work> {
        // A critical section, because a poll that is suspended under the lock would delay other
        // threads.
        let _critical = Critical::enter();
        if let Some(work) = self.table().get(name) {
            return work.clone();
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.add(name)
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, number: u32) -> Option<Arc<Work>> {
        let _critical = Critical::enter();
        self.table().works.get(number as usize).cloned()
    }

    /// Returns the named work of the poll under way on this vCPU, and the level of that work.
    /// Callable from any thread.
    pub(crate) fn current_work(
        &self,
        vcpu: &Vcpu<Linux>,
        poll: &upshift_core::Poll,
    ) -> Option<(Arc<Work>, Level)> {
        let _critical = Critical::enter();
        let current = work_cells()
            .iter()
            .filter_map(|cell| cell.upgrade()?.read())
            .find(|current| current.is_of(vcpu, poll))?;
        Some((self.get(current.number)?, current.level))
    }

    /// Returns the last named work of a poll that has just ended on the calling thread, and the
    /// level of that work.
    pub(crate) fn last_work(&self, poll: &upshift_core::Poll) -> Option<(Arc<Work>, Level)> {
        let vcpu = host::served_vcpu()?;
        let current = WORK_CELL.try_with(|cell| cell.get()?.read()).ok().flatten();
        // SAFETY: the pointer is valid, because a vCPU exists while a thread serves it.
        let current = current.filter(|current| current.is_of(unsafe { vcpu.as_ref() }, poll))?;
        Some((self.get(current.number)?, current.level))
    }

    pub(crate) fn metrics(&self) -> Vec<NamedMetrics> {
        let works = {
            let _critical = Critical::enter();
            self.table().works.clone()
        };
        let work_metrics = |work: &Arc<Work>| {
            let ended = work.ended.load(Relaxed);
            NamedMetrics {
                name: work.name.to_string(),
                // `ended` was read before `begun`, so `ended` does not exceed `begun`.
                under_way: work.begun.load(Relaxed).saturating_sub(ended),
                ended,
                polls: work.polls.load(Relaxed),
                polling: clock::from_ticks(work.polling.load(Relaxed)),
                longest: clock::from_ticks(work.longest_poll.load(Relaxed)),
                level: Level::new(work.level.load(Relaxed) as u8).unwrap_or_default(),
                latency: Histogram::from_ticks(&work.latency.snapshot()),
            }
        };
        works.iter().map(work_metrics).collect()
    }
}

/// The named work that a thread polls, or that it has polled last.
#[derive(Clone, Copy)]
struct CurrentWork {
    /// Address of the vCPU.
    vcpu: u64,
    /// Id of the coroutine.
    id: u64,
    /// Tick at which the poll of the named work began.
    began_at: u64,
    number: u32,
    level: Level,
    /// Set while the named future has not returned.
    active: bool,
}

impl CurrentWork {
    fn is_of(&self, vcpu: &Vcpu<Linux>, poll: &upshift_core::Poll) -> bool {
        self.vcpu == std::ptr::from_ref(vcpu).addr() as u64
            && self.id == poll.id.to_u64()
            // A poll that was suspended seems to have begun when it was resumed.
            && (self.active || self.began_at >= poll.began)
    }
}

/// The [`CurrentWork`] of a thread, which other threads read.
#[derive(Default)]
struct WorkCell {
    stamp: AtomicU64,
    vcpu: AtomicU64,
    id: AtomicU64,
    began_at: AtomicU64,
    /// Number, level in bits 32 to 39, `active` in bit 40.
    packed: AtomicU64,
}

impl WorkCell {
    /// Changes the content. Only the thread that the cell belongs to may call this function.
    fn write(&self, current: CurrentWork) {
        let stamp = self.stamp.load(Relaxed);
        self.stamp.store(stamp + 1, Relaxed);
        // A reader that sees one of the words below also sees the odd stamp.
        fence(Release);
        let level = u64::from(current.level.get());
        let packed = u64::from(current.number) | level << 32 | u64::from(current.active) << 40;
        self.vcpu.store(current.vcpu, Relaxed);
        self.id.store(current.id, Relaxed);
        self.began_at.store(current.began_at, Relaxed);
        self.packed.store(packed, Relaxed);
        self.stamp.store(stamp + 2, Release);
    }

    fn read(&self) -> Option<CurrentWork> {
        let stamp = self.stamp.load(Acquire);
        if stamp == 0 || stamp % 2 == 1 {
            return None;
        }
        let (vcpu, id) = (self.vcpu.load(Relaxed), self.id.load(Relaxed));
        let (began_at, packed) = (self.began_at.load(Relaxed), self.packed.load(Relaxed));
        fence(Acquire);
        if self.stamp.load(Relaxed) != stamp {
            return None;
        }
        Some(CurrentWork {
            vcpu,
            id,
            began_at,
            number: packed as u32,
            level: Level::new((packed >> 32) as u8).ok()?,
            active: packed >> 40 & 1 == 1,
        })
    }
}

/// The cells of all threads.
static WORK_CELLS: Mutex<Vec<Weak<WorkCell>>> = Mutex::new(Vec::new());

thread_local! {
    static WORK_CELL: OnceCell<Arc<WorkCell>> = const { OnceCell::new() };
}

fn work_cells() -> MutexGuard<'static, Vec<Weak<WorkCell>>> {
    WORK_CELLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work_cell() -> Option<Arc<WorkCell>> {
    let make = || {
        // A critical section, because a poll that is suspended under the lock would delay the
        // watchdog.
        let _critical = Critical::enter();
        let cell = Arc::new(WorkCell::default());
        let mut cells = work_cells();
        cells.retain(|other| other.strong_count() != 0);
        cells.push(Arc::downgrade(&cell));
        cell
    };
    // During the destruction of a thread its locals may be gone.
    WORK_CELL
        .try_with(|cell| cell.get_or_init(make).clone())
        .ok()
}

/// Names the work of a future, for example a route or a job. Stalls, panics and timelines then show
/// this name, and `upshift top` and [`Metrics::named`](crate::metrics::Metrics::named) count the
/// work by its name.
///
/// Choose few distinct names, for example a route with its placeholders (`GET /users/{id}`) instead
/// of the path of a request. A runtime distinguishes up to 1,024 names; further names are counted
/// together. If named work contains named parts, the innermost name is shown.
///
/// Axum's routes are named by the layer `upshift::axum::NameRoutes` (feature `axum`).
///
/// ```
/// use upshift::{Handle, Level, Runtime, named};
///
/// Runtime::new()?.block_on(async {
///     let price = async { 6 * 7 };
///     let price = upshift::spawn(named("price", price), Level::HIGH);
///     assert_eq!(price.await.unwrap(), 42);
///     let metrics = Handle::current().unwrap().metrics();
///     assert_eq!(metrics.named[0].name, "price");
///     assert_eq!(metrics.named[0].level, Level::HIGH);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn named<F: Future>(name: impl Into<Cow<'static, str>>, future: F) -> Named<F> {
    Named {
        name: name.into(),
        begun: None,
        #[cfg(feature = "tracing")]
        span: None,
        future,
    }
}

/// A future with a name; see [`named`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Named<F> {
    name: Cow<'static, str>,
    begun: Option<Begun>,
    #[cfg(feature = "tracing")]
    span: Option<(tracing::Span, i64)>,
    future: F,
}

/// Work that has begun; its drop counts the end.
struct Begun {
    work: Arc<Work>,
    /// Tick of the first poll.
    began_at: u64,
}

impl Drop for Begun {
    fn drop(&mut self) {
        let ticks = clock::ticks().saturating_sub(self.began_at);
        self.work.latency.add(ticks);
        self.work.ended.fetch_add(1, Relaxed);
    }
}

/// Guard of a poll of named work; its drop restores the outer work.
struct PollGuard<'a> {
    work: &'a Work,
    cell: Arc<WorkCell>,
    outer: Option<CurrentWork>,
    current: CurrentWork,
}

impl<'a> PollGuard<'a> {
    /// Begins a poll of `work`; `None` if no coroutine is polled on this thread.
    fn begin(work: &'a Work) -> Option<PollGuard<'a>> {
        let vcpu = host::served_vcpu()?;
        let current = CurrentWork {
            vcpu: vcpu.as_ptr().addr() as u64,
            id: host::current_id()?.to_u64(),
            began_at: clock::ticks(),
            number: work.number,
            level: host::current_level().unwrap_or_default(),
            active: true,
        };
        let cell = work_cell()?;
        let outer = cell.read().filter(|outer| outer.active);
        cell.write(current);
        work.level.store(u64::from(current.level.get()), Relaxed);
        trace(vcpu, &current);
        Some(PollGuard {
            work,
            cell,
            outer,
            current,
        })
    }
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        let ticks = clock::ticks().saturating_sub(self.current.began_at);
        self.work.polls.fetch_add(1, Relaxed);
        self.work.polling.fetch_add(ticks, Relaxed);
        if ticks > self.work.longest_poll.load(Relaxed) {
            self.work.longest_poll.fetch_max(ticks, Relaxed);
        }
        self.cell.write(self.outer.unwrap_or(CurrentWork {
            active: false,
            ..self.current
        }));
    }
}

fn trace(vcpu: NonNull<Vcpu<Linux>>, current: &CurrentWork) {
    context::with_domain(|domain| {
        let recorder = domain.host().recorder();
        if recorder.is_on() {
            // SAFETY: the pointer is valid, because a vCPU exists while a thread serves it.
            let index = unsafe { vcpu.as_ref() }.index();
            let id = CoroutineId::from_u64(current.id);
            recorder.named(index, id, current.level, current.number);
        }
    });
}

impl<F: Future> Future for Named<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: nothing is moved out of the pinned `self` through this reference.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: the field is pinned structurally, because it is never moved, and is dropped in
        // place with `self`.
        let future = unsafe { Pin::new_unchecked(&mut this.future) };
        if this.begun.is_none() {
            this.begun = context::with_domain(|domain| domain.host().names().intern(&this.name))
                .map(|work| {
                    work.begun.fetch_add(1, Relaxed);
                    Begun {
                        work,
                        began_at: clock::ticks(),
                    }
                });
        }
        let Some(begun) = &this.begun else {
            // Outside a runtime nothing shows names.
            return future.poll(cx);
        };
        #[cfg(feature = "tracing")]
        let _entered = {
            // OpenTelemetry has no unsigned numbers.
            let level = i64::from(host::current_level().unwrap_or_default().get());
            let (span, recorded_level) = this.span.get_or_insert_with(|| {
                let span = tracing::info_span!(
                    target: "upshift::named",
                    "named",
                    otel.name = &*this.name,
                    level,
                );
                (span, level)
            });
            if std::mem::replace(recorded_level, level) != level {
                span.record("level", level);
            }
            span.enter()
        };
        let guard = PollGuard::begin(&begun.work);
        let polled = future.poll(cx);
        drop(guard);
        if polled.is_ready() {
            this.begun = None;
        }
        polled
    }
}

impl<F> fmt::Debug for Named<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Named").field(&self.name).finish()
    }
}
