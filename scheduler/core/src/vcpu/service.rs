//! Whether a vCPU is in service, retired, or free for another executor.
//!
//! ```text
//!            1 retire             2 vacate
//!   Serves ───────────► Retired ───────────► Vacant
//!      ▲                                        │
//!      └──────────────── 3 revive ──────────────┘
//! ```
//!
//! The executor makes steps 1 and 2; [`Domain::add_vcpu`](crate::Domain::add_vcpu) makes step 3 for
//! another executor. Any thread reads the state, because a retired vCPU accepts no coroutines.

use crate::sync::AtomicU8;
use crate::sync::Ordering::{Relaxed, SeqCst};

const SERVES: u8 = 0;
const RETIRED: u8 = 1;
/// The vCPU is retired, and its executor is gone.
const VACANT: u8 = 2;

pub(crate) struct Service(AtomicU8);

impl Service {
    pub(super) fn new() -> Service {
        Service(AtomicU8::new(SERVES))
    }

    fn step(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, SeqCst, Relaxed).is_ok()
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Relaxed) != SERVES
    }

    /// Like `is_over`, but ordered after a push into the inbox. So either the pushing thread sees
    /// that the service is over, or the thread that retires the vCPU finds the push and forwards
    /// it.
    pub(super) fn is_over_now(&self) -> bool {
        self.0.load(SeqCst) != SERVES
    }

    /// 1: ends the service. Returns false if it had ended before.
    pub(super) fn retire(&self) -> bool {
        self.step(SERVES, RETIRED)
    }

    /// 2: records that the executor is gone.
    pub(super) fn vacate(&self) {
        self.0.store(VACANT, SeqCst);
    }

    /// 3: puts the vCPU back into service. Returns false if it has an executor.
    pub(super) fn revive(&self) -> bool {
        self.step(VACANT, SERVES)
    }
}
