//! Whether what is to be registered may be.
//!
//! Nothing a process says of its threads is believed: a thread is accepted if the kernel lists it under the process that has
//! connected, if that process still lives afterwards and is of the user that has connected, if no other registration has it, and if it is
//! pinned to the CPU of its vCPU and to no other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use upshift_board::wire::Reason;
use upshift_elevate::sys::CpuSet;

use crate::control::Control;
use crate::control::names::Named;
use crate::control::requests::{Outcome, refuse};
use crate::cpu::{Charge, Command, Latch};
use crate::roster::Owner;

impl Control {
    /// Of threads that are to be registered, forgets those of other registrations that had the same numbers and have ended.
    pub(super) fn forget_ended(&mut self, threads: &[Named]) {
        for tid in threads.iter().map(|thread| thread.tid) {
            let Some(&key) = self.claimed.get(&tid) else {
                continue;
            };
            let Some(connection) = self.connections.get_mut(&key) else {
                continue;
            };
            let (pid, user) = (connection.peer.pid, connection.peer.user);
            let clock = self.shared.machine.thread_clock(pid, tid);
            if !clock.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                continue;
            }
            for vcpu in connection.session.iter_mut().flat_map(|it| &mut it.vcpus) {
                let before = vcpu.threads.len();
                vcpu.threads.retain(|thread| thread.tid != tid);
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
        threads: &[Named],
        cpus: &[usize],
    ) -> Outcome<Vec<(Named, Charge)>> {
        let mut charges: Vec<(Named, Charge)> = Vec::with_capacity(threads.len());
        for &thread in threads {
            let (tid, name) = (thread.tid, thread.name);
            if self.claimed.contains_key(&tid) || charges.iter().any(|(other, _)| other.tid == tid)
            {
                let text = format!("thread {name} is registered already");
                return refuse(Reason::Thread, text);
            }
            let clock = match self.shared.machine.thread_clock(pid, tid) {
                Ok(clock) => clock,
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
            charges.push((thread, Charge::new(tid, thread.role, clock, owner)));
        }
        // A process that has ended meanwhile may have been followed by another of the same number.
        if !self.lives(key) {
            return refuse(Reason::Thread, format!("process {pid} has ended"));
        }
        Ok(charges)
    }

    /// Whether the process is still of the user that has connected: it may have become another's by executing a program with the
    /// set-user-id bit, while a child holds its connection.
    pub(super) fn check_user(&self, pid: i32, user: u32) -> Outcome<Arc<OwnedFd>> {
        let machine = self.shared.machine.as_ref();
        let process = machine.process(pid);
        let users = process.and_then(|it| Ok((machine.users(it.as_fd())?, it)));
        match users {
            Ok((users, process)) if users.iter().all(|&it| it == user) => Ok(Arc::new(process)),
            Ok((users, _)) => refuse(
                Reason::Forbidden,
                format!(
                    "process {pid} runs as the users {users:?}, and user {user} has connected: connect and register as one user"
                ),
            ),
            Err(error) => refuse(
                Reason::Failed,
                format!("process {pid} cannot be looked at: {error}"),
            ),
        }
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
