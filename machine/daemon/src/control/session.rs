//! A registration as the control thread sees it. The schedulers own the state that changes with
//! each decision.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use upshift_board::LocalPage;
use upshift_board::os::Mapping;
use upshift_board::wire::Role;

use crate::cpu::VcpuCounters;

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

#[derive(Debug)]
pub(crate) struct SessionVcpu {
    pub(crate) cpu: usize,
    pub(crate) slot: usize,
    pub(crate) threads: Vec<SessionThread>,
    pub(crate) counters: Arc<VcpuCounters>,
}

#[derive(Debug)]
pub(crate) struct SessionThread {
    pub(crate) tid: i32,
    /// TID in the namespace of the client, which may differ from the daemon's.
    pub(crate) name: i32,
    pub(crate) role: Role,
    /// CPU clock of the thread. A later thread with the same TID has another clock.
    pub(crate) clock: Arc<OwnedFd>,
}

impl Session {
    pub(crate) fn threads(&self) -> usize {
        self.vcpus.iter().map(|vcpu| vcpu.threads.len()).sum()
    }
}
