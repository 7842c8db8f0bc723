//! Defines [`Event`], an action of a coroutine or of its vCPU (a worker's run queue and its I/O
//! ring).

use upshift_core::{CoroutineId, Level, MAX_VCPUS, Step};

/// An action of a coroutine, or of its vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "row::Row", try_from = "row::Row"))]
pub struct Event {
    /// Time, in nanoseconds since the recording began.
    pub at: u64,
    /// vCPU of the event. For a step of a coroutine this is the coroutine's vCPU; the vCPU whose
    /// thread took the step is [`Coroutine::by`].
    pub vcpu: u32,
    /// Kind of the event.
    pub kind: EventKind,
}

impl Event {
    /// Returns the event, unless its vCPU is impossible; an impossible [`Coroutine::by`] becomes
    /// `None`. Timelines come from other processes and are not trusted.
    pub(crate) fn checked(self) -> Option<Event> {
        let exists = |vcpu: &u32| (*vcpu as usize) < MAX_VCPUS;
        let mut event = Some(self).filter(|event| exists(&event.vcpu))?;
        if let EventKind::Coroutine(_, coroutine) = &mut event.kind {
            coroutine.by = coroutine.by.filter(exists);
        }
        Some(event)
    }
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A coroutine took a step.
    Coroutine(Step, Coroutine),
    /// The vCPU has no work and begins to wait.
    Parked,
    /// The vCPU ends its wait.
    Unparked,
    /// The vCPU has reaped this number of I/O completions.
    Arrived(u32),
}

/// The coroutine of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coroutine {
    /// Id of the coroutine.
    pub id: CoroutineId,
    /// Effective level of the coroutine.
    pub level: Level,
    /// Spawn site: see [`Timeline::site`](crate::Timeline::site).
    pub site: u32,
    /// vCPU whose thread took the step; `None` for another thread.
    pub by: Option<u32>,
}

#[cfg(feature = "serde")]
mod row {
    //! An event as an array of numbers, which is a third as large as an object with names.

    use super::{Coroutine, Event, EventKind};
    use upshift_core::{CoroutineId, Level, Step};

    /// `at`, `vcpu`, code of the kind, its argument (completions, or the vCPU that was stolen
    /// from), id, level, site, and `by` + 1, or 0 for `None`.
    pub(super) type Row = (u64, u32, u8, u32, u64, u8, u32, u32);

    const PARKED: u8 = 16;
    const UNPARKED: u8 = 17;
    const ARRIVED: u8 = 18;

    impl From<Event> for Row {
        fn from(event: Event) -> Row {
            let Event { at, vcpu, kind } = event;
            let (code, argument) = match kind {
                EventKind::Coroutine(step, coroutine) => {
                    let (code, argument) = step_to_numbers(step);
                    let Coroutine {
                        id,
                        level,
                        site,
                        by,
                    } = coroutine;
                    let by = by.map_or(0, |by| by.saturating_add(1));
                    let id = id.to_u64();
                    return (at, vcpu, code, argument, id, level.get(), site, by);
                }
                EventKind::Parked => (PARKED, 0),
                EventKind::Unparked => (UNPARKED, 0),
                EventKind::Arrived(count) => (ARRIVED, count),
            };
            (at, vcpu, code, argument, 0, 0, 0, 0)
        }
    }

    impl TryFrom<Row> for Event {
        type Error = String;
        fn try_from(row: Row) -> Result<Event, String> {
            let (at, vcpu, code, argument, id, level, site, by) = row;
            let kind = match code {
                PARKED => EventKind::Parked,
                UNPARKED => EventKind::Unparked,
                ARRIVED => EventKind::Arrived(argument),
                _ => {
                    let step = step_from_numbers(code, argument);
                    let step = step.ok_or_else(|| format!("{code} is not the code of an event"))?;
                    let coroutine = Coroutine {
                        id: CoroutineId::from_u64(id),
                        level: Level::new(level).map_err(|error| error.to_string())?,
                        site,
                        by: by.checked_sub(1),
                    };
                    EventKind::Coroutine(step, coroutine)
                }
            };
            Ok(Event { at, vcpu, kind })
        }
    }

    fn step_to_numbers(step: Step) -> (u8, u32) {
        match step {
            Step::Spawned => (0, 0),
            Step::Ready => (1, 0),
            Step::Polled => (2, 0),
            Step::Resumed => (3, 0),
            Step::Yielded => (4, 0),
            Step::Blocked => (5, 0),
            Step::Suspended => (6, 0),
            Step::Stolen { from } => (7, from as u32),
            Step::Exited => (8, 0),
        }
    }

    fn step_from_numbers(code: u8, argument: u32) -> Option<Step> {
        Some(match code {
            0 => Step::Spawned,
            1 => Step::Ready,
            2 => Step::Polled,
            3 => Step::Resumed,
            4 => Step::Yielded,
            5 => Step::Blocked,
            6 => Step::Suspended,
            7 => Step::Stolen {
                from: argument as usize,
            },
            8 => Step::Exited,
            _ => return None,
        })
    }
}
