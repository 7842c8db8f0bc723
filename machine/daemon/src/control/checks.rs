//! Whether what is to be registered may be.
//!
//! Nothing a process says of its threads is believed: a thread is accepted if the kernel lists
//! it under the process that has connected, if that process still lives afterwards and is of the
//! user that has connected, if no other registration has it, and if it is pinned to the CPU of
//! its vCPU and to no other. A reader has opened the files (`lookup.rs`); the
//! process still lives, so it was the same one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use upshift_board::wire::Reason;
use upshift_elevate::sys::CpuSet;

use crate::control::Control;
use crate::control::names::Named;
use crate::control::requests::{Outcome, Refusal, refuse};
use crate::control::session::SessionThread;
use crate::cpu::{Charge, Command, Latch, is_over};
use crate::ranking::roster::Owner;

impl Control {
    /// Of threads that are to be registered, forgets those of other registrations that had the same numbers and have ended.
    pub(super) fn forget_ended(&mut self, threads: &[(Named, io::Result<OwnedFd>)]) {
        for tid in threads.iter().map(|(thread, _)| thread.tid) {
            let Some(&key) = self.claimed.get(&tid) else {
                continue;
            };
            let Some(connection) = self.connections.get_mut(&key) else {
                continue;
            };
            let user = connection.peer.user;
            let machine = self.shared.machine.as_ref();
            let has_ended = |it: &SessionThread| {
                let time = machine.cpu_time(it.clock.as_fd());
                time.is_err_and(|error| is_over(&error))
            };
            for vcpu in connection.session.iter_mut().flat_map(|it| &mut it.vcpus) {
                let before = vcpu.threads.len();
                vcpu.threads
                    .retain(|thread| thread.tid != tid || !has_ended(thread));
                if vcpu.threads.len() == before {
                    continue;
                }
                self.claimed.remove(&tid);
                self.admission.remove_threads(user, 1);
                if let Some(scheduler) = self.schedulers.get(&vcpu.cpu) {
                    scheduler.tell(Command::Gone(vcpu.slot, tid, Latch::default()));
                }
            }
        }
    }

    /// Every thread with its clock, or why one of them is not acceptable.
    pub(super) fn check_threads(
        &self,
        key: u64,
        (pid, user): (i32, u32),
        threads: Vec<(Named, io::Result<OwnedFd>)>,
        cpus: &[usize],
    ) -> Outcome<Vec<(SessionThread, u16, Charge)>> {
        let mut charges: Vec<(SessionThread, u16, Charge)> = Vec::with_capacity(threads.len());
        for (thread, clock) in threads {
            let (tid, name) = (thread.tid, thread.name);
            if self.claimed.contains_key(&tid) || charges.iter().any(|(other, ..)| other.tid == tid)
            {
                let text = format!("thread {name} is registered already");
                return refuse(Reason::Thread, text);
            }
            let clock = match clock {
                Ok(clock) => Arc::new(clock),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let text = format!("thread {name} does not belong to process {pid}");
                    return refuse(Reason::Thread, text);
                }
                Err(error) => {
                    return refuse(
                        Reason::Failed,
                        format!("thread {name} cannot be looked at: {error}"),
                    );
                }
            };
            let Some(&cpu) = cpus.get(usize::from(thread.vcpu)) else {
                return refuse(
                    Reason::Malformed,
                    format!("thread {name} is of a vCPU that is not registered"),
                );
            };
            match self.shared.sys.sched_getaffinity(tid) {
                Ok(set) if Some(set) == CpuSet::only(cpu) => {}
                Ok(_) => {
                    let text = format!(
                        "thread {name} is not pinned to CPU {cpu}: pin it there (sched_setaffinity) before registering"
                    );
                    return refuse(Reason::Thread, text);
                }
                Err(error) => {
                    return refuse(
                        Reason::Thread,
                        format!("thread {name} cannot be looked at: {error}"),
                    );
                }
            }
            let owner = Owner { pid, user, cpu };
            let charge = Charge::new(tid, thread.role, Arc::clone(&clock), owner);
            let role = thread.role;
            let known = SessionThread {
                tid,
                name,
                role,
                clock,
            };
            charges.push((known, thread.vcpu, charge));
        }
        // A process that has ended meanwhile may have been followed by another of the same number.
        if !self.lives(key) {
            return refuse(Reason::Thread, format!("process {pid} has ended"));
        }
        Ok(charges)
    }

    /// Whether the process is still of the user that has connected: it may have become another's by executing a program with the
    /// set-user-id bit, while a child holds its connection. `process` was looked up some time ago.
    pub(super) fn check_user(
        &self,
        (pid, user): (i32, u32),
        process: io::Result<(OwnedFd, [u32; 4])>,
    ) -> Outcome<Arc<OwnedFd>> {
        let unreadable = |error: io::Error| {
            Refusal(
                Reason::Failed,
                format!("process {pid} cannot be looked at: {error}"),
            )
        };
        let (process, mut users) = process.map_err(unreadable)?;
        users[1] = self
            .shared
            .machine
            .user(process.as_fd())
            .map_err(unreadable)?;
        if users.iter().all(|&it| it == user) {
            return Ok(Arc::new(process));
        }
        refuse(
            Reason::Forbidden,
            format!(
                "process {pid} runs as the users {users:?}, and user {user} has connected: connect and register as one user"
            ),
        )
    }

    fn lives(&self, key: u64) -> bool {
        let Some(connection) = self.connections.get(&key) else {
            return false;
        };
        let mut poll = [PollFd::new(&connection.peer.pidfd, PollFlags::IN)];
        let now = rustix::event::Timespec::default();
        rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|ready| ready == 0)
    }
}
