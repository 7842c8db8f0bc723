//! Records the events of a simulation, and displays them as text, with a line per event and a
//! column per vCPU.

use std::fmt;

use upshift_core::{Level, Step};

/// Maximum number of vCPUs that are shown as columns. With more vCPUs, the text only lists the
/// events.
const COLUMNS: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    Step(usize, Level, Step),
    /// The beginning or end of a vCPU's wait for work.
    Idle(bool),
}

/// The events of a simulation, in order.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    pub(crate) vcpus: usize,
    /// Tuples of the time in nanoseconds, the vCPU whose strand made the event, and the event.
    pub(crate) entries: Vec<(u64, Option<usize>, Entry)>,
}

impl Timeline {
    pub(crate) fn new(vcpus: usize) -> Timeline {
        Timeline {
            vcpus,
            entries: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, time: u64, vcpu: Option<usize>, entry: Entry) {
        self.entries.push((time, vcpu, entry));
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_columns = self.vcpus <= COLUMNS;
        write!(f, "{:>12} ", "µs")?;
        if has_columns {
            (0..self.vcpus).try_for_each(|vcpu| write!(f, "{:^6}", format!("v{vcpu}")))?;
        }
        writeln!(f)?;
        let mut lanes = vec!["".to_owned(); self.vcpus];
        for (time, vcpu, entry) in &self.entries {
            let description = match *entry {
                Entry::Idle(true) => "parks".to_owned(),
                Entry::Idle(false) => "is back".to_owned(),
                Entry::Step(k, level, step) => {
                    format!("#{k} {step:?} (level {})", level.get())
                }
            };
            if let Some(vcpu) = *vcpu {
                lanes[vcpu] = match *entry {
                    Entry::Idle(true) => "z".to_owned(),
                    Entry::Step(k, _, Step::Polled | Step::Resumed) => format!("#{k}"),
                    Entry::Idle(false)
                    | Entry::Step(
                        ..,
                        Step::Yielded | Step::Blocked | Step::Suspended | Step::Exited,
                    ) => ".".to_owned(),
                    Entry::Step(..) => lanes[vcpu].clone(),
                };
            }
            write!(f, "{:>12.3} ", *time as f64 / 1e3)?;
            if has_columns {
                lanes.iter().try_for_each(|lane| write!(f, "{lane:^6}"))?;
            }
            match vcpu {
                Some(vcpu) => writeln!(f, " vCPU {vcpu}: {description}")?,
                None => writeln!(f, " outside: {description}")?,
            }
        }
        Ok(())
    }
}
