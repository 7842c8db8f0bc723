//! Answers the messages of clients. A page is accepted if its seals fix its length and prevent
//! holes. `lookup.rs` and `checks.rs` check threads and processes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use upshift_board::LocalPage;
use upshift_board::layout::LOCAL_BYTES;
use upshift_board::os::Mapping;
use upshift_board::wire::{self, Cpus, Reason, Reply, Request, Threads, Tids, WireError};

use crate::admission::{Load, Trust};
use crate::bounds::bucket_per_second;
use crate::control::lookup::{Facts, Intent};
use crate::control::names::NamedThread;
use crate::control::session::{Session, SessionThread, SessionVcpu};
use crate::control::{Control, RESTORE_TIMEOUT};
use crate::cpu::{ClientThread, Command, Latch, VcpuCounters, VcpuEntry};
use crate::status;

pub(super) struct Refusal(pub(super) Reason, pub(super) String);

pub(super) type Outcome<T> = Result<T, Refusal>;

pub(super) fn refuse<T>(reason: Reason, text: impl Into<String>) -> Outcome<T> {
    Err(Refusal(reason, text.into()))
}

impl Control {
    /// Decodes a message and answers it. An error means that the reply could not be sent.
    pub(super) fn answer(&mut self, key: u64, message: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
        let request = match Request::decode(message) {
            Ok(request) => request,
            Err(error) => {
                let reason = match error {
                    WireError::Version(_) => Reason::Version,
                    _ => Reason::Malformed,
                };
                return self.send_refusal(key, Refusal(reason, error.to_string()));
            }
        };
        let outcome = match request {
            Request::Register { cpus, threads } => {
                return self.register(key, cpus, threads, fds);
            }
            Request::Update { added, removed } => {
                return self.update(key, request.kind(), added, removed);
            }
            Request::Leave => self.leave(key),
            Request::Census => return self.census(key),
        };
        match outcome {
            Ok(()) => self.send(key, &Reply::Done(request.kind()), &[]),
            Err(refusal) => self.send_refusal(key, refusal),
        }
    }

    pub(super) fn refuse_malformed(&mut self, key: u64) -> io::Result<()> {
        let text = "the message is too long or carries too many descriptors".to_string();
        self.send_refusal(key, Refusal(Reason::Malformed, text))
    }

    pub(super) fn send_refusal(
        &mut self,
        key: u64,
        Refusal(reason, text): Refusal,
    ) -> io::Result<()> {
        self.shared.counts.refused.fetch_add(1, Relaxed);
        let text = &text;
        self.send(key, &Reply::Refused { reason, text }, &[])
    }

    fn send(&self, key: u64, reply: &Reply<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Some(connection) = self.connections.get(&key) else {
            return Ok(());
        };
        let mut message = wire::buffer();
        let length = reply.encode(&mut message);
        upshift_board::os::send(connection.socket.as_fd(), &message[..length], fds)
    }

    fn register(
        &mut self,
        key: u64,
        cpus: Cpus<'_>,
        threads: Threads<'_>,
        fds: &[OwnedFd],
    ) -> io::Result<()> {
        match self.admit(key, cpus, threads, fds) {
            Ok(intent) => {
                self.look_up(key, threads.iter().collect(), intent);
                Ok(())
            }
            Err(refusal) => self.send_refusal(key, refusal),
        }
    }

    pub(super) fn register_known(
        &mut self,
        key: u64,
        page: Arc<Mapping<LocalPage>>,
        cpus: &[usize],
        threads: usize,
        facts: Facts,
    ) -> io::Result<()> {
        let config = Arc::clone(&facts.config);
        let (session, doorbells) = match self.join(key, page, cpus, facts) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                if let Some(connection) = self.connections.get(&key) {
                    let user = connection.peer.user;
                    self.admission.unregister(user, Load { threads, cpus });
                }
                return self.send_refusal(key, refusal);
            }
        };
        let reply = Reply::Welcome {
            generation: self.generation(),
            session: session.number,
            slot: session.slot as u32,
            vcpus: session.vcpus.len() as u16,
            enforcing: self.shared.enforcing(),
        };
        if !Arc::ptr_eq(&config, &self.shared.config()) {
            self.look_up_levels(vec![(key, session.number, session.pid)]);
        }
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.session = Some(session);
        }
        self.shared.counts.joined.fetch_add(1, Relaxed);
        let global = self.shared.global.file();
        let fds: Vec<_> = std::iter::once(global)
            .chain(doorbells.iter().map(AsFd::as_fd))
            .collect();
        self.send(key, &reply, &fds)
    }

    fn generation(&self) -> u64 {
        let header = self.shared.global.page().header();
        header.generation.load(Relaxed)
    }

    fn rights(&self, uid: u32, groups: &[u32]) -> Outcome<(u8, Trust)> {
        let config = self.shared.config();
        let Some(ceiling) = config.ceiling_of(uid, groups) else {
            return refuse(
                Reason::Forbidden,
                format!("user {uid} may not register: a rule of the configuration denies it"),
            );
        };
        Ok((ceiling, config.trust_of(uid, groups)))
    }

    /// Performs the checks that need no facts about the process, and reserves its resources.
    fn admit(
        &mut self,
        key: u64,
        cpus: Cpus<'_>,
        threads: Threads<'_>,
        fds: &[OwnedFd],
    ) -> Outcome<Intent> {
        let Some(connection) = self.connections.get(&key) else {
            return refuse(Reason::State, "the connection is gone");
        };
        if connection.session.is_some() {
            return refuse(Reason::State, "registered already: leave first");
        }
        let user = connection.peer.user;
        let (_, trust) = self.rights(connection.peer.uid, &connection.peer.groups)?;
        let cpus: Vec<usize> = cpus.iter().map(|cpu| cpu as usize).collect();
        let threads = threads.len();
        let load = Load {
            threads,
            cpus: &cpus,
        };
        let now = Instant::now();
        if let Err(text) = self.admission.register(user, trust, load, now) {
            return refuse(Reason::Limit, text);
        }
        match self.check_page(&cpus, fds) {
            Ok(page) => Ok(Intent::Register {
                page,
                cpus,
                threads,
            }),
            Err(refusal) => {
                self.admission.unregister(user, load);
                Err(refusal)
            }
        }
    }

    fn check_page(&self, cpus: &[usize], fds: &[OwnedFd]) -> Outcome<Arc<Mapping<LocalPage>>> {
        let [file] = fds else {
            let text = "a registration must carry exactly one descriptor, that of its page";
            return refuse(Reason::Page, text);
        };
        let page = match self.shared.machine.local_page(file.as_fd()) {
            Ok(page) => Arc::new(page),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let text = format!(
                    "the page is not a memory file of {LOCAL_BYTES} bytes sealed against shrinking, growing, future writing and sealing"
                );
                return refuse(Reason::Page, text);
            }
            Err(error) => {
                return refuse(
                    Reason::Failed,
                    format!("the page cannot be mapped: {error}"),
                );
            }
        };
        if let Some(cpu) = cpus.iter().find(|&&cpu| cpu >= self.shared.cpus) {
            let text = format!(
                "there is no CPU {cpu}: the CPUs are numbered 0 to {}",
                self.shared.cpus - 1
            );
            return refuse(Reason::Cpu, text);
        }
        Ok(page)
    }

    /// Performs all other checks, then registers the process completely or not at all.
    fn join(
        &mut self,
        key: u64,
        page: Arc<Mapping<LocalPage>>,
        cpus: &[usize],
        facts: Facts,
    ) -> Outcome<(Session, Vec<OwnedFd>)> {
        let Some(connection) = self.connections.get(&key) else {
            return refuse(Reason::State, "the connection is gone");
        };
        let (pid, user) = (connection.peer.pid, connection.peer.user);
        let uid = connection.peer.uid;
        let (ceiling, trust) = self.rights(uid, &connection.peer.groups)?;
        let machine = Arc::clone(&self.shared.machine);
        let threads = facts.threads?;
        self.forget_ended(&threads);
        let client_threads = self.check_threads(key, (pid, user), threads, cpus)?;
        let failed =
            |what: &'static str| move |error| Refusal(Reason::Failed, format!("{what}: {error}"));
        let made = cpus.iter().map(|_| machine.doorbell());
        let doorbells: Vec<OwnedFd> = made
            .collect::<Result<_, _>>()
            .map_err(failed("no doorbell created"))?;
        for &cpu in cpus {
            self.scheduler(cpu)
                .map_err(failed("no scheduler started"))?;
        }
        self.start_monitor().map_err(failed("no canary started"))?;
        let copies = doorbells.iter().map(OwnedFd::try_clone);
        let copies: Vec<OwnedFd> = copies
            .collect::<Result<_, _>>()
            .map_err(failed("no doorbell copied"))?;
        let process = self.check_user((pid, uid), facts.process)?;
        let Some(slot) = self.slots.take(cpus.len(), trust) else {
            return refuse(Reason::Limit, "no room for so many vCPUs on the board");
        };
        // The assigned level takes precedence over the ceiling of the user.
        let ceiling = ceiling.max(facts.level.unwrap_or(0));
        if let Some(assigner) = &self.assigner {
            assigner.on_registration(pid, RESTORE_TIMEOUT);
        }
        let mut session = Session {
            number: self.next_session,
            pid,
            command: facts.command,
            ceiling,
            page: Arc::clone(&page),
            slot,
            vcpus: Vec::new(),
            joined: Instant::now(),
        };
        self.next_session = self.next_session.wrapping_add(1);
        let mut by_vcpu: Vec<(Vec<SessionThread>, Vec<ClientThread>)> =
            cpus.iter().map(|_| Default::default()).collect();
        for (thread, vcpu, client_thread) in client_threads {
            self.claimed.insert(thread.tid, key);
            let (threads, client_threads) = &mut by_vcpu[usize::from(vcpu)];
            threads.push(thread);
            client_threads.push(client_thread);
        }
        for (index, ((cpu, (threads, client_threads)), doorbell)) in
            cpus.iter().copied().zip(by_vcpu).zip(copies).enumerate()
        {
            let counters = Arc::new(VcpuCounters::default());
            session.vcpus.push(SessionVcpu {
                cpu,
                slot: slot + index,
                threads,
                counters: Arc::clone(&counters),
            });
            let rate = u64::from(self.shared.config().limits.rings_per_second);
            let entry = VcpuEntry {
                pid,
                uid,
                user,
                trusted: trust > Trust::Anybody,
                process: Arc::clone(&process),
                quota_usage: self.shared.quotas.usage(pid),
                index,
                slot: slot + index,
                ceiling,
                page: Arc::clone(&page),
                doorbell,
                threads: client_threads,
                counters,
                rings: bucket_per_second(rate, rate / 50, Instant::now()),
                ignored_until: None,
            };
            if let Some(scheduler) = self.schedulers.get(&cpu) {
                scheduler.send(Command::Join(Box::new(entry)));
            }
        }
        Ok((session, doorbells))
    }

    fn update(
        &mut self,
        key: u64,
        kind: u16,
        added: Threads<'_>,
        removed: Tids<'_>,
    ) -> io::Result<()> {
        let limit = self.shared.config().limits.threads;
        let connection = self.connections.get(&key);
        let refused = match connection.and_then(|connection| connection.session.as_ref()) {
            None => refuse(Reason::State, "not registered: register first"),
            Some(session) if session.threads() + added.len() > limit => refuse(
                Reason::Limit,
                format!("more threads than the {limit} of limits.threads"),
            ),
            Some(_) => Ok(()),
        };
        if let Err(refusal) = refused {
            return self.send_refusal(key, refusal);
        }
        let removed: Vec<i32> = removed.iter().collect();
        if !added.is_empty() {
            self.look_up(
                key,
                added.iter().collect(),
                Intent::Update { removed, kind },
            );
            return Ok(());
        }
        let done = self.change_threads(key, Vec::new(), &removed);
        self.answer_update(key, kind, done)
    }

    pub(super) fn update_known(
        &mut self,
        key: u64,
        kind: u16,
        facts: Facts,
        removed: &[i32],
    ) -> io::Result<()> {
        let threads = facts.threads;
        let done = threads.and_then(|threads| self.change_threads(key, threads, removed));
        self.answer_update(key, kind, done)
    }

    fn answer_update(&mut self, key: u64, kind: u16, done: Outcome<()>) -> io::Result<()> {
        match done {
            Ok(()) => self.send(key, &Reply::Done(kind), &[]),
            Err(refusal) => self.send_refusal(key, refusal),
        }
    }

    fn change_threads(
        &mut self,
        key: u64,
        added: Vec<(NamedThread, io::Result<OwnedFd>)>,
        removed: &[i32],
    ) -> Outcome<()> {
        let Some(connection) = self.connections.get(&key) else {
            return refuse(Reason::State, "the connection is gone");
        };
        let Some(session) = &connection.session else {
            return refuse(Reason::State, "not registered: register first");
        };
        let (pid, user) = (connection.peer.pid, connection.peer.user);
        let cpus: Vec<usize> = session.vcpus.iter().map(|vcpu| vcpu.cpu).collect();
        let config = self.shared.config();
        let trust = config.trust_of(connection.peer.uid, &connection.peer.groups);
        let count = added.len();
        self.forget_ended(&added);
        let client_threads = self.check_threads(key, (pid, user), added, &cpus)?;
        if let Err(text) = self.admission.add_threads(user, trust, count) {
            return refuse(Reason::Limit, text);
        }
        let mut removed_count = 0;
        let mut latches = Vec::new();
        let Some(session) = self
            .connections
            .get_mut(&key)
            .and_then(|connection| connection.session.as_mut())
        else {
            return Ok(());
        };
        for &name in removed {
            for vcpu in &mut session.vcpus {
                let Some(at) = vcpu.threads.iter().position(|thread| thread.name == name) else {
                    continue;
                };
                let tid = vcpu.threads.remove(at).tid;
                self.claimed.remove(&tid);
                removed_count += 1;
                if let Some(scheduler) = self.schedulers.get(&vcpu.cpu) {
                    let latch = Latch::default();
                    scheduler.send(Command::ThreadRemoved(vcpu.slot, tid, latch.clone()));
                    latches.push(latch);
                }
            }
        }
        for (thread, vcpu, client_thread) in client_threads {
            let vcpu = &mut session.vcpus[usize::from(vcpu)];
            self.claimed.insert(thread.tid, key);
            vcpu.threads.push(thread);
            if let Some(scheduler) = self.schedulers.get(&vcpu.cpu) {
                scheduler.send(Command::ThreadAdded(vcpu.slot, client_thread));
            }
        }
        self.admission.remove_threads(user, removed_count);
        for latch in latches {
            latch.wait(RESTORE_TIMEOUT);
        }
        Ok(())
    }

    fn leave(&mut self, key: u64) -> Outcome<()> {
        let found = self.connections.get_mut(&key);
        let Some((session, user)) =
            found.and_then(|connection| Some((connection.session.take()?, connection.peer.user)))
        else {
            return refuse(Reason::State, "not registered: nothing to leave");
        };
        self.end_session(session, user);
        Ok(())
    }

    fn census(&mut self, key: u64) -> io::Result<()> {
        if let Some(connection) = self.connections.get(&key) {
            let peer = &connection.peer;
            let trust = self.shared.config().trust_of(peer.uid, &peer.groups);
            if let Err(text) = self.admission.take_census(peer.user, trust, Instant::now()) {
                return self.send_refusal(key, Refusal(Reason::Limit, text));
            }
        }
        let json = status::to_json(self);
        let Some(connection) = self.connections.get(&key) else {
            return Ok(());
        };
        let file = self.censuses.file(connection.peer.user, &json);
        match file {
            Ok(file) => {
                let bytes = json.len() as u32;
                self.send(key, &Reply::Census { bytes }, &[file.as_fd()])
            }
            Err(error) => {
                let text = format!("no memory for the census: {error}");
                self.send_refusal(key, Refusal(Reason::Failed, text))
            }
        }
    }
}
