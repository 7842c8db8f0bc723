//! Converts events to spans of time in which a coroutine is in one state or a vCPU is awake.
//!
//! A span that was under way when the recording began starts with the recording. A span that is
//! under way when the recording ends lasts until that end. The conversion is O(events), with a hash
//! look-up for each event.

use std::collections::HashMap;

use upshift_core::{CoroutineId, Level, MAX_VCPUS, State, Step};

use crate::event::{Coroutine, EventKind};
use crate::timeline::Timeline;

/// A span of time in which a coroutine was in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Id of the coroutine.
    pub id: CoroutineId,
    /// Level of the coroutine at the beginning.
    pub level: Level,
    /// Spawn site of the coroutine.
    pub site: u32,
    /// State of the coroutine.
    pub state: State,
    /// vCPU of the coroutine.
    pub vcpu: u32,
    /// Beginning, in ns.
    pub from: u64,
    /// End, in ns.
    pub to: u64,
}

/// A span of time in which a vCPU was awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awake {
    /// The vCPU.
    pub vcpu: u32,
    /// Beginning, in ns.
    pub from: u64,
    /// End, in ns.
    pub to: u64,
}

/// All spans of a timeline.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// Spans of coroutines, in the order of their ends. There is none for [`State::Exited`].
    pub states: Vec<Span>,
    /// Spans of vCPUs, in the order of their ends.
    pub awake: Vec<Awake>,
}

impl Spans {
    /// Returns the spans of a timeline.
    #[must_use]
    pub fn of(timeline: &Timeline) -> Spans {
        let mut builder = Builder {
            spans: Spans::default(),
            open: HashMap::new(),
            vcpus: vec![None; timeline.vcpus.min(MAX_VCPUS as u32) as usize],
        };
        for event in timeline.events.iter().filter_map(|event| event.checked()) {
            match event.kind {
                EventKind::Coroutine(step, coroutine) => {
                    if let Some(by) = coroutine.by {
                        builder.note_activity(by);
                    }
                    builder.step(event.at, event.vcpu, step, coroutine);
                }
                EventKind::Arrived(_) => builder.note_activity(event.vcpu),
                EventKind::Unparked => builder.begin_awake(event.vcpu, event.at),
                EventKind::Parked => {
                    builder.note_activity(event.vcpu);
                    builder.end_awake(event.vcpu, event.at);
                }
            }
        }
        builder.finish(timeline.length)
    }
}

struct Builder {
    spans: Spans,
    /// Current span of each coroutine.
    open: HashMap<CoroutineId, Span>,
    /// Time since which each vCPU is awake. The inner `None` means that the vCPU waits, the outer
    /// `None` that its state is unknown.
    vcpus: Vec<Option<Option<u64>>>,
}

impl Builder {
    fn vcpu(&mut self, vcpu: u32) -> Option<&mut Option<Option<u64>>> {
        self.vcpus.get_mut(vcpu as usize)
    }

    /// Notes that the vCPU acts, so it was awake before.
    fn note_activity(&mut self, vcpu: u32) {
        if let Some(state @ None) = self.vcpu(vcpu) {
            *state = Some(Some(0));
        }
    }

    fn begin_awake(&mut self, vcpu: u32, at: u64) {
        if let Some(state @ (None | Some(None))) = self.vcpu(vcpu) {
            *state = Some(Some(at));
        }
    }

    fn end_awake(&mut self, vcpu: u32, to: u64) {
        if let Some(state) = self.vcpu(vcpu)
            && let Some(Some(from)) = state.replace(None)
            && from < to
        {
            self.spans.awake.push(Awake { vcpu, from, to });
        }
    }

    fn step(&mut self, at: u64, vcpu: u32, step: Step, coroutine: Coroutine) {
        let Coroutine {
            id, level, site, ..
        } = coroutine;
        let Some(state) = step.entered() else {
            // The coroutine stays ready, on another vCPU.
            if let Some(span) = self.open.get_mut(&id) {
                span.vcpu = vcpu;
            }
            return;
        };
        let next = Span {
            id,
            level,
            site,
            state,
            vcpu,
            from: at,
            to: at,
        };
        let before = if state == State::Exited {
            self.open.remove(&id)
        } else {
            self.open.insert(id, next)
        };
        let before = before.or_else(|| {
            // The first event of the coroutine implies its state until now.
            let state = match step {
                Step::Yielded | Step::Blocked | Step::Suspended => State::Running,
                Step::Exited if coroutine.by.is_some() => State::Running,
                Step::Polled => State::Ready,
                Step::Resumed => State::Suspended,
                Step::Ready => State::Blocked,
                _ => return None,
            };
            Some(Span {
                state,
                from: 0,
                ..next
            })
        });
        if let Some(mut before) = before {
            before.to = at;
            self.close(before);
        }
    }

    fn close(&mut self, span: Span) {
        if span.to > span.from {
            self.spans.states.push(span);
        }
    }

    fn finish(mut self, end: u64) -> Spans {
        for vcpu in 0..self.vcpus.len() as u32 {
            self.end_awake(vcpu, end);
        }
        let mut open: Vec<Span> = self.open.drain().map(|(_, span)| span).collect();
        open.sort_by_key(|span| (span.from, span.id));
        for mut span in open {
            span.to = end.max(span.from);
            self.close(span);
        }
        self.spans
    }
}
