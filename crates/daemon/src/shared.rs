//! What the threads of the daemon share: all of it constant, atomic, or behind a short lock.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use upshift_elevate::sys::Sys;
use upshift_elevate::{Elevator, Priority};

use crate::config::Config;
use crate::global::Global;
use crate::machine::Machine;

/// Dispatchers of processes, above all workers.
pub(crate) const DISPATCHER: Priority = Priority::of::<44>();

/// The daemon's own threads, above everything they decide about, below the guardian.
pub(crate) const DAEMON: Priority = Priority::of::<46>();

/// How often the same complaint may be printed.
const COMPLAINT: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// `None`: cooperative.
    pub(crate) elevator: Option<Elevator>,
    pub(crate) sys: Arc<dyn Sys>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) global: Global,
    /// CPUs are numbered below this.
    pub(crate) cpus: usize,
    pub(crate) counts: Counts,
    complaints: Mutex<HashMap<&'static str, Instant>>,
}

/// Counters of the whole daemon.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Registrations so far.
    pub(crate) joined: AtomicU64,
    /// Requests refused.
    pub(crate) refused: AtomicU64,
    /// Threads put out for what they did.
    pub(crate) ejected: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        elevator: Option<Elevator>,
        sys: Arc<dyn Sys>,
        machine: Arc<dyn Machine>,
        global: Global,
        cpus: usize,
    ) -> Shared {
        Shared {
            config,
            elevator,
            sys,
            machine,
            global,
            cpus,
            counts: Counts::default(),
            complaints: Mutex::default(),
        }
    }

    pub(crate) fn enforcing(&self) -> bool {
        self.elevator.is_some()
    }

    /// Prints a line on standard error, at most one of a kind each ten seconds.
    pub(crate) fn complain(&self, kind: &'static str, text: impl FnOnce() -> String) {
        let now = Instant::now();
        {
            let mut complaints = self
                .complaints
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if complaints
                .get(kind)
                .is_some_and(|&last| now - last < COMPLAINT)
            {
                return;
            }
            complaints.insert(kind, now);
        }
        // `eprintln!` would panic where nobody reads it any more, or the disk is full.
        let _ = writeln!(std::io::stderr(), "upshift daemon: {}", text());
    }
}
