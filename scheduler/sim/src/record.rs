//! Converts the timeline of a simulation to the format of the Linux runtime's timelines, for
//! Perfetto or as a picture.

use upshift_core::{CoroutineId, Step};
use upshift_trace::{Coroutine, EventKind};

use crate::timeline::{Entry, Timeline};

impl Timeline {
    /// Returns the timeline as a recording, which [`upshift_trace::Timeline::write_chrome`] and
    /// [`to_svg`](upshift_trace::Timeline::to_svg) write to a file. Coroutine `k` of the workload
    /// has the id `k`.
    #[must_use]
    pub fn recording(&self, name: &str) -> upshift_trace::Timeline {
        let mut recording = upshift_trace::Timeline::new(name);
        recording.vcpus = self.vcpus as u32;
        // The last vCPU of each coroutine. It is needed because the thread that suspends a poll
        // serves no vCPU.
        let mut last_vcpus: Vec<u32> = Vec::new();
        for &(time, vcpu, entry) in &self.entries {
            let by = vcpu.map(|vcpu| vcpu as u32);
            match (entry, by) {
                (Entry::Idle(true), Some(vcpu)) => recording.add(time, vcpu, EventKind::Parked),
                (Entry::Idle(false), Some(vcpu)) => recording.add(time, vcpu, EventKind::Unparked),
                (Entry::Idle(_), None) => {}
                (Entry::Step(k, level, step), by) => {
                    if last_vcpus.len() <= k {
                        last_vcpus.resize(k + 1, 0);
                    }
                    if let Some(by) = by
                        && !matches!(step, Step::Spawned | Step::Ready)
                    {
                        last_vcpus[k] = by;
                    }
                    let coroutine = Coroutine {
                        id: CoroutineId::from_u64(k as u64),
                        level,
                        site: recording.site(&format!("#{k}")),
                        by,
                    };
                    recording.add(time, last_vcpus[k], EventKind::Coroutine(step, coroutine));
                }
            }
        }
        recording
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use upshift_core::{Level, State};
    use upshift_trace::spans::Spans;

    #[test]
    fn a_simulation_is_drawn_like_a_runtime() {
        let level = Level::at::<9>();
        let mut timeline = Timeline::new(2);
        let steps = [
            (0, Some(0), Step::Spawned),
            (0, Some(0), Step::Ready),
            (5, Some(1), Step::Stolen { from: 0 }),
            (6, Some(1), Step::Polled),
            (20, None, Step::Suspended),
            (30, Some(1), Step::Resumed),
            (40, Some(1), Step::Exited),
        ];
        for (time, by, step) in steps {
            timeline.add(time, by, Entry::Step(3, level, step));
        }
        timeline.add(50, Some(1), Entry::Idle(true));
        let recording = timeline.recording("case");
        let spans = Spans::of(&recording);
        let states: Vec<_> = spans
            .states
            .iter()
            .map(|span| (span.state, span.from, span.to))
            .collect();
        let expected = [
            (State::Ready, 0, 6),
            (State::Running, 6, 20),
            (State::Suspended, 20, 30),
            (State::Running, 30, 40),
        ];
        assert_eq!(states, expected);
        assert!(spans.states[1..].iter().all(|span| span.vcpu == 1));
        assert_eq!((recording.vcpus, recording.length), (2, 50));
    }
}
