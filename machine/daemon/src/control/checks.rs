//! Checks whether the threads of a registration belong to the connected process.
//!
//! The daemon trusts no claim of a process about its threads. It accepts a thread if the kernel
//! lists the thread under the connected process, if this process is still alive afterwards and
//! belongs to the connected user, if no other registration has the thread, and if the thread is
//! pinned to the CPU of its vCPU and to no other CPU. A reader thread has opened the files
//! (`lookup.rs`). Because the process is still alive, the files belong to this process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use upshift_board::wire::Reason;
use upshift_elevate::sys::CpuSet;

use crate::control::Control;
use crate::control::names::NamedThread;
use crate::control::requests::{Outcome, Refusal, refuse};
use crate::control::session::SessionThread;
use crate::cpu::{ClientThread, Command, Latch, is_gone};
use crate::ranking::roster::Owner;

impl Control {
    /// Forgets registered threads that have ended, if `threads` reuse their TIDs.
    pub(super) fn forget_ended(&mut self, threads: &[(NamedThread, io::Result<OwnedFd>)]) {
        for tid in threads.iter().map(|(thread, _)| thread.tid) {
            let Some(&key) = self.claimed.get(&tid) else {
                continue;
            };
            let Some(connection) = self.connections.get_mut(&key) else {
                continue;
            };
            let user = connection.peer.user;
            let machine = self.shared.machine.as_ref();
            let has_ended = |thread: &SessionThread| {
                let time = machine.cpu_time(thread.clock.as_fd());
                time.is_err_and(|error| is_gone(&error))
            };
            for vcpu in connection
                .session
                .iter_mut()
                .flat_map(|session| &mut session.vcpus)
            {
                let before = vcpu.threads.len();
                vcpu.threads
                    .retain(|thread| thread.tid != tid || !has_ended(thread));
                if vcpu.threads.len() == before {
                    continue;
                }
                self.claimed.remove(&tid);
                self.admission.remove_threads(user, 1);
                if let Some(scheduler) = self.schedulers.get(&vcpu.cpu) {
                    scheduler.send(Command::ThreadRemoved(vcpu.slot, tid, Latch::default()));
                }
            }
        }
    }

    pub(super) fn check_threads(
        &self,
        key: u64,
        (pid, user): (i32, u32),
        threads: Vec<(NamedThread, io::Result<OwnedFd>)>,
        cpus: &[usize],
    ) -> Outcome<Vec<(SessionThread, u16, ClientThread)>> {
        let mut client_threads: Vec<(SessionThread, u16, ClientThread)> =
            Vec::with_capacity(threads.len());
        for (thread, clock) in threads {
            let (tid, name) = (thread.tid, thread.name);
            if self.claimed.contains_key(&tid)
                || client_threads.iter().any(|(other, ..)| other.tid == tid)
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
                        format!("thread {name} cannot be read: {error}"),
                    );
                }
            };
            let Some(&cpu) = cpus.get(usize::from(thread.vcpu)) else {
                return refuse(
                    Reason::Malformed,
                    format!("thread {name} belongs to a vCPU that is not registered"),
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
                        format!("thread {name} cannot be read: {error}"),
                    );
                }
            }
            let owner = Owner { pid, user, cpu };
            let client_thread = ClientThread::new(tid, thread.role, Arc::clone(&clock), owner);
            let role = thread.role;
            let session_thread = SessionThread {
                tid,
                name,
                role,
                clock,
            };
            client_threads.push((session_thread, thread.vcpu, client_thread));
        }
        // The pid of a process that has ended meanwhile may have been reused.
        if !self.lives(key) {
            return refuse(Reason::Thread, format!("process {pid} has ended"));
        }
        Ok(client_threads)
    }

    /// Checks that the process still belongs to the connected user, since it may have executed a
    /// program with the set-user-id bit while a child holds its connection. `process` was looked up
    /// earlier.
    pub(super) fn check_user(
        &self,
        (pid, user): (i32, u32),
        process: io::Result<(OwnedFd, [u32; 4])>,
    ) -> Outcome<Arc<OwnedFd>> {
        let unreadable = |error: io::Error| {
            Refusal(
                Reason::Failed,
                format!("process {pid} cannot be read: {error}"),
            )
        };
        let (process, mut users) = process.map_err(unreadable)?;
        users[1] = self
            .shared
            .machine
            .user(process.as_fd())
            .map_err(unreadable)?;
        if users.iter().all(|&other| other == user) {
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
