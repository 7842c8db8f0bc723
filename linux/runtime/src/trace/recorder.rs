//! Records the events of a runtime in ring buffers, and creates the timeline from them.
//!
//! Rings are never freed while the runtime lives, because a thread may be in the middle of writing
//! a record when a recording ends. Later recordings use the same rings, and replace a ring only by
//! a larger one. As sizes are powers of two, all rings of a vCPU together are less than twice the
//! size of its last ring.
//!
//! A busy vCPU overwrites its records sooner than an idle one, so a snapshot begins at the time
//! from which all rings are complete. The state of a vCPU at that time follows from its older
//! records, or from its state when the recording began.

use std::collections::HashMap;
use std::io;
use std::panic::Location;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use upshift_core::{Change, CoroutineId, Domain, Host, Level, MAX_VCPUS, Step};
use upshift_trace::{Coroutine, EventKind, Timeline};

use super::ring::{Record, Ring};
use crate::observe::Names;
use crate::time::clock;

/// Index of the ring that is shared by all threads that serve no vCPU.
const OTHERS: usize = MAX_VCPUS;

pub(crate) struct Recorder {
    is_recording: AtomicBool,
    /// Null, or a pointer into an `Arc` in `state`.
    rings: Box<[AtomicPtr<Ring>]>,
    /// Number of events that were lost because their vCPU has no ring.
    without_ring: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All rings that have been created.
    all: Vec<Arc<Ring>>,
    /// The ring in use for each vCPU, and the number of its first record.
    current: HashMap<usize, (Arc<Ring>, u64)>,
    /// Minimum size of a ring, in records.
    records: usize,
    /// Ticks at the beginning and at the end of the recording.
    began: u64,
    ended: Option<u64>,
    /// The vCPUs that were awake when the recording began, and their polls under way.
    initial: Vec<Record>,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        Recorder {
            is_recording: AtomicBool::new(false),
            rings: (0..=MAX_VCPUS).map(|_| AtomicPtr::default()).collect(),
            without_ring: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a recording is under way. Costs one load.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_recording.load(Relaxed)
    }

    /// Begins a recording with at least `records` records per ring.
    pub(super) fn start<H: Host>(&self, domain: &Domain<H>, records: usize) -> io::Result<()> {
        let mut state = self.state();
        self.is_recording.store(false, Relaxed);
        state.records = records;
        state.ended = Some(state.began);
        state.initial.clear();
        for index in (0..domain.vcpus().count()).chain([OTHERS]) {
            self.ensure_ring(&mut state, index)?;
        }
        self.without_ring.store(0, Relaxed);
        state.began = clock::ticks();
        state.ended = None;
        self.is_recording.store(true, Relaxed);
        // Read after the store, so that the ends of these polls are recorded.
        for vcpu in domain
            .vcpus()
            .filter(|vcpu| !vcpu.is_retired() && !vcpu.is_parked())
        {
            let (index, at) = (vcpu.index(), state.began);
            state.initial.push(vcpu_record(index, UNPARKED, 0, at));
            if let Some(poll) = vcpu.current_poll() {
                state.initial.push(Record {
                    at,
                    id: poll.id.to_u64(),
                    location: Some(poll.location),
                    packed: pack(POLLED, poll.level.get(), index, Some(index), 0),
                });
            }
        }
        Ok(())
    }

    /// Ends the recording.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        if self.is_recording.swap(false, Relaxed) {
            state.ended = Some(clock::ticks());
        }
    }

    pub(crate) fn add_vcpu(&self, index: usize) {
        if self.is_on() {
            let mut state = self.state();
            // A vCPU that is added again continues its own ring.
            if !state.current.contains_key(&index) {
                // If memory is short, the records of the vCPU are counted as lost.
                let _ = self.ensure_ring(&mut state, index);
            }
        }
    }

    /// Provides a large enough ring for vCPU `index`. Only records that are added from now on
    /// belong to the recording.
    fn ensure_ring(&self, state: &mut State, index: usize) -> io::Result<()> {
        let old_ring = state.current.get(&index).map(|(ring, _)| ring.clone());
        let ring = match old_ring.filter(|ring| ring.size() >= state.records) {
            Some(ring) => ring,
            None => {
                let ring = Arc::new(Ring::new(state.records)?);
                state.all.push(ring.clone());
                self.rings[index].store(Arc::as_ptr(&ring).cast_mut(), Release);
                ring
            }
        };
        let first = ring.count();
        state.current.insert(index, (ring, first));
        Ok(())
    }

    #[cold]
    pub(crate) fn changed(&self, change: &Change) {
        let (kind, argument) = encode_step(change.step);
        let record = Record {
            at: clock::ticks(),
            id: change.id.to_u64(),
            location: Some(change.location),
            packed: pack(kind, change.level.get(), change.vcpu, change.by, argument),
        };
        self.push(change.by, &record);
    }

    /// Records that the poll under way on the calling thread's vCPU does the work with the number
    /// `name`, at this level.
    #[cold]
    pub(crate) fn named(&self, index: usize, id: CoroutineId, level: Level, name: u32) {
        let argument = usize::try_from(name).unwrap_or(usize::MAX);
        let record = Record {
            id: id.to_u64(),
            packed: pack(NAMED, level.get(), index, Some(index), argument),
            ..vcpu_record(index, NAMED, 0, clock::ticks())
        };
        self.push(Some(index), &record);
    }

    #[inline]
    pub(crate) fn parked(&self, index: usize) {
        if self.is_on() {
            self.push(Some(index), &vcpu_record(index, PARKED, 0, clock::ticks()));
        }
    }

    #[inline]
    pub(crate) fn unparked(&self, index: usize) {
        if self.is_on() {
            self.push(
                Some(index),
                &vcpu_record(index, UNPARKED, 0, clock::ticks()),
            );
        }
    }

    /// Calls `reap`, and records the number of completions that it returns. The recorded time lies
    /// before the wakes that these completions cause.
    #[inline]
    pub(crate) fn reaped(&self, index: usize, reap: impl FnOnce() -> usize) {
        if !self.is_on() {
            reap();
            return;
        }
        let at = clock::ticks();
        let completions = reap();
        if completions != 0 {
            self.push(Some(index), &vcpu_record(index, ARRIVED, completions, at));
        }
    }

    #[cold]
    fn push(&self, by: Option<usize>, record: &Record) {
        let slot = self.rings.get(by.unwrap_or(OTHERS));
        let ring = slot.map_or(std::ptr::null_mut(), |slot| slot.load(Acquire));
        // SAFETY: the pointer is null, or leads into an `Arc` that `state` keeps while `self`
        // lives.
        match unsafe { ring.as_ref() } {
            Some(ring) if by.is_some() => ring.push_own(record),
            Some(ring) => ring.push_shared(record),
            None => drop(self.without_ring.fetch_add(1, Relaxed)),
        }
    }

    /// Creates the timeline of the recording.
    pub(super) fn snapshot(&self, name: &str, vcpus: usize, names: &Names) -> Timeline {
        let state = self.state();
        let mut timeline = Timeline::new(name);
        timeline.vcpus = vcpus as u32;
        timeline.lost = self.without_ring.load(Relaxed);
        let (mut records, mut window) = (Vec::new(), state.began);
        let mut rings: Vec<_> = state.current.iter().collect();
        rings.sort_by_key(|(index, _)| **index);
        for (_, (ring, first)) in rings {
            let (ring_records, overwritten, missing) = ring.read(*first);
            timeline.lost += overwritten + missing;
            if overwritten != 0 {
                let oldest = ring_records.iter().map(|record| record.at).min();
                window = window.max(oldest.unwrap_or(window));
            }
            records.extend(ring_records);
        }
        let end = state.ended.unwrap_or_else(clock::ticks);
        let began = state.began;
        // Drops records of earlier recordings, because a thread may have been stopped in the middle
        // of writing such a record.
        records.retain(|record| record.at >= began);
        records.sort_by_key(|record| record.at);
        let before = records.partition_point(|record| record.at < window);
        let mut under_way = UnderWay::default();
        for record in state.initial.iter().chain(&records[..before]) {
            under_way.note(record);
        }
        timeline.lost += before as u64;
        let inside = &records[before..];
        let mut writer = Writer {
            timeline,
            sites: HashMap::new(),
            names,
            polls: HashMap::new(),
            began: window,
        };
        for record in under_way.at(window, inside) {
            writer.add(&record);
        }
        inside.iter().for_each(|record| writer.add(record));
        let mut timeline = writer.timeline;
        timeline.length = timeline.length.max(nanos(window, end));
        timeline
    }
}

/// The vCPUs that are awake at some time, each with its poll under way, if there is one.
#[derive(Default)]
struct UnderWay(HashMap<usize, (Record, Option<Record>)>);

impl UnderWay {
    /// Updates the state with the next record.
    fn note(&mut self, record: &Record) {
        let Unpacked { kind, vcpu, .. } = unpack(record.packed);
        let awake = vcpu_record(vcpu, UNPARKED, 0, record.at);
        match kind {
            PARKED => drop(self.0.remove(&vcpu)),
            UNPARKED => drop(self.0.insert(vcpu, (awake, None))),
            POLLED | RESUMED => drop(self.0.insert(vcpu, (awake, Some(*record)))),
            YIELDED | BLOCKED | SUSPENDED | EXITED => {
                if let Some((_, poll)) = self.0.get_mut(&vcpu)
                    && poll.is_some_and(|poll| poll.id == record.id)
                {
                    *poll = None;
                }
            }
            _ => {}
        }
    }

    /// Returns the state as records of the time `window`, at which the records in `following`
    /// begin. Omits records that `following` implies.
    fn at(self, window: u64, following: &[Record]) -> Vec<Record> {
        let mut of_vcpus: Vec<_> = self.0.into_iter().collect();
        of_vcpus.sort_by_key(|(vcpu, _)| *vcpu);
        let mut all = Vec::new();
        for (vcpu, (awake, poll)) in of_vcpus {
            let mut records_of_vcpu = following
                .iter()
                .filter(|record| unpack(record.packed).vcpu == vcpu);
            let next = records_of_vcpu.find(|record| {
                matches!(
                    unpack(record.packed).kind,
                    POLLED..=SUSPENDED | EXITED | PARKED | UNPARKED
                )
            });
            if next.is_some_and(|next| unpack(next.packed).kind == UNPARKED) {
                continue;
            }
            all.push(Record {
                at: window,
                ..awake
            });
            let ends = |record: &Record| {
                next.is_none_or(|next| {
                    next.id == record.id && !matches!(unpack(next.packed).kind, POLLED | RESUMED)
                })
            };
            all.extend(poll.filter(ends).map(|poll| Record { at: window, ..poll }));
        }
        all
    }
}

/// Adds records to a timeline.
struct Writer<'a> {
    timeline: Timeline,
    sites: HashMap<*const Location<'static>, u32>,
    names: &'a Names,
    /// For each running coroutine, the index of the event that began its poll, and the name of its
    /// work.
    polls: HashMap<u64, (usize, Option<u32>)>,
    began: u64,
}

impl Writer<'_> {
    fn add(&mut self, record: &Record) {
        let Unpacked {
            kind,
            level,
            vcpu,
            by,
            argument,
        } = unpack(record.packed);
        let event_kind = match (decode_step(kind, argument), Level::new(level)) {
            (Some(step), Ok(level)) => {
                let name = self.name_of(record.id, step);
                let coroutine = Coroutine {
                    id: CoroutineId::from_u64(record.id),
                    level,
                    site: name.unwrap_or_else(|| self.site(record.location)),
                    by: by.map(|by| by as u32),
                };
                EventKind::Coroutine(step, coroutine)
            }
            (None, Ok(level)) if kind == NAMED => {
                self.named(record.id, level, argument);
                return;
            }
            _ if kind == PARKED => EventKind::Parked,
            _ if kind == UNPARKED => EventKind::Unparked,
            _ => EventKind::Arrived(argument as u32),
        };
        self.timeline
            .add(nanos(self.began, record.at), vcpu as u32, event_kind);
    }

    /// Returns the name of the work in the poll that a step begins or ends. A poll keeps its name
    /// while it is suspended.
    fn name_of(&mut self, id: u64, step: Step) -> Option<u32> {
        let next = self.timeline.events.len();
        match step {
            Step::Polled => {
                self.polls.insert(id, (next, None));
                None
            }
            Step::Resumed => {
                let poll = self.polls.entry(id).or_insert((next, None));
                poll.0 = next;
                poll.1
            }
            Step::Suspended => self.polls.get(&id)?.1,
            Step::Yielded | Step::Blocked | Step::Exited => self.polls.remove(&id)?.1,
            Step::Spawned | Step::Ready | Step::Stolen { .. } => None,
        }
    }

    /// Gives the poll under way of a coroutine the name of its work, and the level of that work.
    fn named(&mut self, id: u64, level: Level, number: usize) {
        let work = u32::try_from(number).ok().and_then(|n| self.names.get(n));
        if let Some(work) = work
            && let Some((began, name)) = self.polls.get_mut(&id)
        {
            let site = self.timeline.site(&work.name);
            *name = Some(site);
            if let Some(event) = self.timeline.events.get_mut(*began)
                && let EventKind::Coroutine(_, coroutine) = &mut event.kind
            {
                coroutine.site = site;
                coroutine.level = level;
            }
        }
    }

    /// Returns the number of a spawn location in the timeline.
    fn site(&mut self, location: Option<&'static Location<'static>>) -> u32 {
        let Some(location) = location else {
            return self.timeline.site("?");
        };
        let timeline = &mut self.timeline;
        let site = self.sites.entry(std::ptr::from_ref(location));
        *site.or_insert_with(|| timeline.site(&location.to_string()))
    }
}

/// Returns the nanoseconds between two ticks.
fn nanos(from: u64, to: u64) -> u64 {
    clock::nanos(clock::from_ticks(to.saturating_sub(from)))
}

// Kinds of records.
const SPAWNED: u8 = 0;
const READY: u8 = 1;
const STOLEN: u8 = 2;
const POLLED: u8 = 3;
const RESUMED: u8 = 4;
const YIELDED: u8 = 5;
const BLOCKED: u8 = 6;
const SUSPENDED: u8 = 7;
const EXITED: u8 = 8;
const PARKED: u8 = 9;
const UNPARKED: u8 = 10;
const ARRIVED: u8 = 11;
const NAMED: u8 = 12;

/// Returns the kind and the argument of a record of this step.
fn encode_step(step: Step) -> (u8, usize) {
    match step {
        Step::Spawned => (SPAWNED, 0),
        Step::Ready => (READY, 0),
        Step::Stolen { from } => (STOLEN, from),
        Step::Polled => (POLLED, 0),
        Step::Resumed => (RESUMED, 0),
        Step::Yielded => (YIELDED, 0),
        Step::Blocked => (BLOCKED, 0),
        Step::Suspended => (SUSPENDED, 0),
        Step::Exited => (EXITED, 0),
    }
}

/// Returns the step of a coroutine that a record stands for; `None` for other kinds of records.
fn decode_step(kind: u8, argument: usize) -> Option<Step> {
    Some(match kind {
        SPAWNED => Step::Spawned,
        READY => Step::Ready,
        STOLEN => Step::Stolen { from: argument },
        POLLED => Step::Polled,
        RESUMED => Step::Resumed,
        YIELDED => Step::Yielded,
        BLOCKED => Step::Blocked,
        SUSPENDED => Step::Suspended,
        EXITED => Step::Exited,
        _ => return None,
    })
}

/// Packs everything except time, id and location into one word: kind and level take 8 bits each;
/// vCPU, `by` + 1 and argument take 16 bits each.
#[inline]
fn pack(kind: u8, level: u8, vcpu: usize, by: Option<usize>, argument: usize) -> u64 {
    const { assert!(MAX_VCPUS < u16::MAX as usize) };
    let argument = argument.min(usize::from(u16::MAX)) as u64;
    let by = by.map_or(0, |by| by as u64 + 1);
    u64::from(kind) | u64::from(level) << 8 | (vcpu as u64) << 16 | by << 32 | argument << 48
}

struct Unpacked {
    kind: u8,
    level: u8,
    vcpu: usize,
    by: Option<usize>,
    argument: usize,
}

fn unpack(packed: u64) -> Unpacked {
    let word = |shift: u32| usize::from((packed >> shift) as u16);
    Unpacked {
        kind: packed as u8,
        level: (packed >> 8) as u8,
        vcpu: word(16),
        by: word(32).checked_sub(1),
        argument: word(48),
    }
}

/// Creates a record of a step of a vCPU.
fn vcpu_record(index: usize, kind: u8, argument: usize, at: u64) -> Record {
    Record {
        at,
        id: 0,
        location: None,
        packed: pack(kind, 0, index, Some(index), argument),
    }
}
