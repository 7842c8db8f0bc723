//! Parses the traces that the kernel prints.
//!
//! The kernel knows when a thread is suspended; its program knows which coroutine it was polling at
//! that time. [`parse`] combines both, so that a user coroutine also has all six states.

use std::collections::HashMap;

use os_abi::system_calls;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A coroutine of the kernel.
    Kernel,
    Thread,
    /// A coroutine of a process.
    User,
}

/// A change of state of a thread or a coroutine.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) hart: usize,
    /// Time in ticks since the machine started.
    pub(crate) time: u64,
    pub(crate) kind: Kind,
    /// The letter of the new state; see [`STATES`].
    pub(crate) state: char,
    pub(crate) level: u8,
    pub(crate) process: u32,
    /// Index of the thread in its process.
    pub(crate) thread: u16,
    pub(crate) id: u64,
    /// Name of the subject, for display.
    pub(crate) subject: String,
    /// Set for the coroutine that runs the threads of a hart.
    pub(crate) is_switching: bool,
    /// Set for a kernel coroutine that executes a system call.
    pub(crate) is_call: bool,
}

/// A complete trace, ordered by time.
pub(crate) struct Trace {
    pub(crate) records: Vec<Record>,
    pub(crate) ticks_per_second: u64,
    pub(crate) harts: usize,
    /// Number of overwritten records, and of changes for which the buffers had no space.
    pub(crate) lost: u64,
}

/// Letters of the states, and their names.
pub(crate) const STATES: [(char, &str); 7] = [
    ('C', "created"),
    ('r', "ready"),
    ('R', "running"),
    ('B', "blocked"),
    ('I', "suspended by an interrupt"),
    ('X', "suspended by an exception"),
    ('E', "ended"),
];

macro_rules! names {
    ($($(#[$doc:meta])* $number:literal $kind:ident $name:ident($($argument:ident),*);)*) => {
        fn call_name(number: u16) -> &'static str {
            match number {
                $($number => stringify!($name),)*
                _ => "call",
            }
        }
    };
}

system_calls!(names);

/// Parses the output of a machine. Returns `None` if it contains no trace, or an incomplete one.
pub(crate) fn parse(output: &str) -> Option<Trace> {
    let mut trace = None;
    let mut names = HashMap::new();
    for line in output
        .lines()
        .filter_map(|line| line.strip_prefix("trace: "))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["begin", ticks, harts] => {
                trace = Some(Trace {
                    records: Vec::new(),
                    ticks_per_second: ticks.parse().ok()?,
                    harts: harts.parse().ok()?,
                    lost: 0,
                });
            }
            ["end", lost] => {
                let mut trace = trace?;
                trace.lost = lost.parse().ok()?;
                // A stable sort keeps the order within one hart and tick.
                trace.records.sort_by_key(|record| record.time);
                suspend_coroutines(&mut trace.records);
                for record in &mut trace.records {
                    name(record, &names);
                }
                return Some(trace);
            }
            [hart, time, kind, state, level, process, detail, id] => {
                let record = Record {
                    hart: hart.parse().ok()?,
                    time: time.parse().ok()?,
                    kind: match kind {
                        "k" => Kind::Kernel,
                        "t" => Kind::Thread,
                        _ => Kind::User,
                    },
                    state: state.chars().next()?,
                    level: level.parse().ok()?,
                    process: process.parse().ok()?,
                    thread: detail.parse().ok()?,
                    id: u64::from_str_radix(id, 16).ok()?,
                    subject: String::new(),
                    is_switching: false,
                    is_call: false,
                };
                if record.state == 'N' {
                    names.insert(record.id, (record.process, record.thread));
                } else {
                    trace.as_mut()?.records.push(record);
                }
            }
            _ => return None,
        }
    }
    None
}

/// Adds suspensions of the coroutine that a thread was polling when it was suspended.
fn suspend_coroutines(records: &mut Vec<Record>) {
    let mut polled: HashMap<(u32, u16), Record> = HashMap::new();
    let mut all = Vec::with_capacity(records.len());
    for record in records.drain(..) {
        let thread = (record.process, record.thread);
        all.push(record.clone());
        match (record.kind, record.state) {
            (Kind::User, 'R') => {
                polled.insert(thread, record);
            }
            // The coroutine becomes ready or blocked when its poll ends, or ready when another
            // coroutine wakes it.
            (Kind::User, 'r' | 'B' | 'E') => {
                let _ = polled
                    .extract_if(|key, running| *key == thread && running.id == record.id)
                    .count();
            }
            (Kind::Thread, 'I' | 'X' | 'R') => {
                if let Some(coroutine) = polled.get(&thread) {
                    all.push(Record {
                        time: record.time,
                        hart: record.hart,
                        state: record.state,
                        ..coroutine.clone()
                    });
                }
            }
            _ => {}
        }
    }
    *records = all;
}

/// Returns index and generation of a coroutine, as text.
fn short(id: u64) -> String {
    let (generation, index) = (id >> 32, id & 0xffff_ffff);
    match generation {
        0 => format!("{index}"),
        _ => format!("{index}.{generation}"),
    }
}

/// Sets the name of the subject, and the flags that depend on the purpose of a kernel coroutine.
fn name(record: &mut Record, names: &HashMap<u64, (u32, u16)>) {
    let id = short(record.id);
    record.subject = match (record.kind, names.get(&record.id)) {
        (Kind::Thread, _) => format!("thread {}.{}", record.process, record.thread),
        (Kind::User, _) => format!("coroutine {id} of {}", record.process),
        (Kind::Kernel, None) => format!("kernel {id}"),
        (Kind::Kernel, Some((0, 0))) => {
            record.is_switching = true;
            format!("switching {id}")
        }
        (Kind::Kernel, Some((0, 1))) => "supervisor".to_owned(),
        (Kind::Kernel, Some((0, _))) => "reaper".to_owned(),
        (Kind::Kernel, Some((process, call))) => {
            record.is_call = true;
            let call = call_name(*call);
            format!("{call} {id} of {process}")
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "hello\n\
        trace: begin 10000000 1\n\
        trace: 0 130 t X 32 256 0 0\n\
        trace: 0 100 t R 32 256 0 0\n\
        trace: 0 101 u R 32 256 0 100000002\n\
        trace: 0 131 k N 0 256 16 7\n\
        trace: 0 131 k C 32 0 0 7\n\
        trace: 0 150 t R 32 256 0 0\n\
        trace: 0 160 u B 32 256 0 100000002\n\
        trace: 0 161 t I 32 256 0 0\n\
        trace: end 3\n";

    #[test]
    fn coroutines_are_suspended_with_their_thread() {
        let trace = parse(OUTPUT).expect("the output is a trace");
        assert_eq!((trace.harts, trace.lost), (1, 3));
        let user: String = trace
            .records
            .iter()
            .filter(|record| record.kind == Kind::User)
            .map(|record| record.state)
            .collect();
        assert_eq!(user, "RXRB");
        let kernel = trace
            .records
            .iter()
            .find(|record| record.kind == Kind::Kernel);
        assert_eq!(
            kernel.expect("the coroutine was named").subject,
            "read 7 of 256"
        );
    }

    #[test]
    fn a_trace_without_an_end_is_none() {
        assert!(parse("trace: begin 1 1\n").is_none());
        assert!(parse("upshift: child ended with 0\n").is_none());
    }
}
