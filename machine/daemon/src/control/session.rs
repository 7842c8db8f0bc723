//! A registration, as the control thread knows it. State that changes with each decision belongs to
//! the schedulers.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use upshift_board::LocalPage;
use upshift_board::os::Mapping;
use upshift_board::wire::Role;

use crate::cpu::VcpuCounters;

/// A registration; see the module.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: u32,
    pub(crate) pid: i32,
    pub(crate) command: String,
    pub(crate) ceiling: u8,
    pub(crate) page: Arc<Mapping<LocalPage>>,
    /// Slot of the first vCPU.
    pub(crate) slot: usize,
    pub(crate) vcpus: Vec<SessionVcpu>,
    pub(crate) joined: Instant,
}

/// A vCPU of a session.
#[derive(Debug)]
pub(crate) struct SessionVcpu {
    pub(crate) cpu: usize,
    pub(crate) slot: usize,
    pub(crate) threads: Vec<SessionThread>,
    pub(crate) counters: Arc<VcpuCounters>,
}

/// A thread of a vCPU.
#[derive(Debug)]
pub(crate) struct SessionThread {
    pub(crate) tid: i32,
    /// Its number for the client, which may live in another pid namespace.
    pub(crate) name: i32,
    pub(crate) role: Role,
    /// Its record of CPU time, which a later thread of its number does not have.
    pub(crate) clock: Arc<OwnedFd>,
}

impl Session {
    /// Returns the number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.vcpus.iter().map(|vcpu| vcpu.threads.len()).sum()
    }
}
