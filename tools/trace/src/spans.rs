//! From events to stretches of time: a coroutine in one state, a vCPU awake.
//!
//! What was under way when the recording began begins with it, what is under way when it ends ends with it. O(events), a
//! look-up by hash each.

use std::collections::HashMap;

use upshift_core::{CoroutineId, Level, MAX_VCPUS, State, Step};

use crate::event::{Coroutine, What};
use crate::timeline::Timeline;

/// A stretch of time in which a coroutine was in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The coroutine.
    pub id: CoroutineId,
    /// Its level when the stretch began.
    pub level: Level,
    /// Where it was spawned.
    pub site: u32,
    /// Its state.
    pub state: State,
    /// The vCPU that it was on.
    pub vcpu: u32,
    /// The stretch, ns.
    pub from: u64,
    /// Its end.
    pub to: u64,
}

/// A stretch of time in which a vCPU was awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awake {
    /// The vCPU.
    pub vcpu: u32,
    /// The stretch, ns.
    pub from: u64,
    /// Its end.
    pub to: u64,
}

/// All of a timeline.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// Of coroutines, in the order of their ends. There is none for [`State::Exited`].
    pub states: Vec<Span>,
    /// Of vCPUs, in the order of their ends.
    pub awake: Vec<Awake>,
}

impl Spans {
    /// The stretches of a timeline.
    #[must_use]
    pub fn of(timeline: &Timeline) -> Spans {
        let mut builder = Builder {
            spans: Spans::default(),
            open: HashMap::new(),
            vcpus: vec![None; timeline.vcpus.min(MAX_VCPUS as u32) as usize],
        };
        for event in timeline.events.iter().filter_map(|event| event.checked()) {
            match event.what {
                What::Coroutine(step, coroutine) => {
                    if let Some(by) = coroutine.by {
                        builder.works(by);
                    }
                    builder.step(event.at, event.vcpu, step, coroutine);
                }
                What::Arrived(_) => builder.works(event.vcpu),
                What::Unparked => builder.wakes(event.vcpu, event.at),
                What::Parked => {
                    builder.works(event.vcpu);
                    builder.sleeps(event.vcpu, event.at);
                }
            }
        }
        builder.finish(timeline.length)
    }
}

struct Builder {
    spans: Spans,
    open: HashMap<CoroutineId, Span>,
    /// Since when each is awake; the inner `None`: it is not. The outer: nothing is known.
    vcpus: Vec<Option<Option<u64>>>,
}

impl Builder {
    fn vcpu(&mut self, vcpu: u32) -> Option<&mut Option<Option<u64>>> {
        self.vcpus.get_mut(vcpu as usize)
    }

    /// It does something, so it was awake before.
    fn works(&mut self, vcpu: u32) {
        if let Some(state @ None) = self.vcpu(vcpu) {
            *state = Some(Some(0));
        }
    }

    fn wakes(&mut self, vcpu: u32, at: u64) {
        if let Some(state @ (None | Some(None))) = self.vcpu(vcpu) {
            *state = Some(Some(at));
        }
    }

    fn sleeps(&mut self, vcpu: u32, to: u64) {
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
            // It stays ready, elsewhere.
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
            // The first that is heard of it: what it must have been until now.
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
            self.sleeps(vcpu, end);
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
