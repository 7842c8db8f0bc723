//! [`Inner`] is the state that all handles of one page share.
//!
//! The local page and the mapping for the global page keep their addresses for the life of the
//! [`Board`](super::Board). So handles read and ring without a lock and never dangle. Joining maps
//! the daemon's page over the mapping for the global page, and moves the new doorbells to the
//! numbers of the earlier descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::vec::Vec;

use crate::client::connection::{Connection, Welcome};
use crate::client::error::JoinError;
use crate::client::{Census, Joined, ThreadSpec, VcpuSpec};
use crate::layout::{GlobalPage, LocalPage, VCPUS};
use crate::os::{self, Mapping};
use crate::wire::Thread;

#[derive(Debug)]
pub(super) struct Inner {
    file: OwnedFd,
    page: Mapping<LocalPage>,
    global: Mapping<GlobalPage>,
    joined: AtomicBool,
    slot: AtomicU32,
    cpus: [AtomicU32; VCPUS],
    doorbells: [OnceLock<OwnedFd>; VCPUS],
    /// Standing and level at the last ring of each vCPU, so that the same change rings only once; 0
    /// once the level is within the thresholds again.
    last_rings: [AtomicU64; VCPUS],
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Connection>,
    /// Socket and vCPUs of the last [`Inner::join`].
    last_join: Option<(PathBuf, Vec<VcpuSpec>)>,
}

impl Inner {
    pub(super) fn new() -> io::Result<Inner> {
        let (file, page) = os::local_page()?;
        Ok(Inner {
            page,
            file,
            global: Mapping::zeroed_global()?,
            joined: AtomicBool::new(false),
            slot: AtomicU32::new(0),
            cpus: [const { AtomicU32::new(0) }; VCPUS],
            doorbells: [const { OnceLock::new() }; VCPUS],
            last_rings: [const { AtomicU64::new(0) }; VCPUS],
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn page(&self) -> &LocalPage {
        &self.page
    }

    pub(super) fn global(&self) -> &GlobalPage {
        &self.global
    }

    pub(super) fn slot(&self, vcpu: usize) -> usize {
        self.slot.load(Relaxed) as usize + vcpu
    }

    pub(super) fn cpu(&self, vcpu: usize) -> usize {
        self.cpus[vcpu].load(Relaxed) as usize
    }

    pub(super) fn last_ring(&self, vcpu: usize) -> &AtomicU64 {
        &self.last_rings[vcpu]
    }

    pub(super) fn doorbell(&self, vcpu: usize) -> Option<&OwnedFd> {
        if self.joined.load(Acquire) {
            self.doorbells[vcpu].get()
        } else {
            None
        }
    }

    pub(super) fn join(&self, socket: &Path, vcpus: &[VcpuSpec]) -> Result<Joined, JoinError> {
        let mut state = self.lock();
        self.depart(&mut state);
        state.last_join = Some((socket.to_path_buf(), vcpus.to_vec()));
        self.connect(&mut state)
    }

    pub(super) fn rejoin(&self) -> Result<Joined, JoinError> {
        let mut state = self.lock();
        self.depart(&mut state);
        self.connect(&mut state)
    }

    fn connect(&self, state: &mut State) -> Result<Joined, JoinError> {
        let Some((socket, vcpus)) = &state.last_join else {
            return Err(JoinError::NeverJoined);
        };
        let connection = Connection::open(socket)?;
        let cpus: Vec<u32> = vcpus.iter().map(|vcpu| vcpu.cpu as u32).collect();
        let threads: Vec<Thread> = vcpus
            .iter()
            .enumerate()
            .flat_map(|(vcpu, spec)| {
                spec.threads
                    .iter()
                    .map(move |&thread| wire_thread(vcpu, thread))
            })
            .collect();
        if cpus.is_empty() {
            return Err(JoinError::TooMany);
        }
        self.page.process().vcpus.store(cpus.len() as u32, Relaxed);
        let welcome = connection.register(&cpus, &threads, self.file.as_fd())?;
        self.install(&welcome, &cpus).map_err(JoinError::Local)?;
        state.connection = Some(connection);
        Ok(welcome.joined)
    }

    fn install(&self, welcome: &Welcome, cpus: &[u32]) -> io::Result<()> {
        for (slot, theirs) in self.doorbells.iter().zip(&welcome.doorbells) {
            match slot.get() {
                None => {
                    let _ = slot.set(theirs.try_clone()?);
                }
                Some(ours) => replace(ours, theirs)?,
            }
        }
        for (slot, &cpu) in self.cpus.iter().zip(cpus) {
            slot.store(cpu, Relaxed);
        }
        self.slot.store(welcome.slot, Relaxed);
        self.global.replace(Some(welcome.global.as_fd()))?;
        self.joined.store(true, Release);
        Ok(())
    }

    fn depart(&self, state: &mut State) {
        if let Some(connection) = state.connection.take() {
            // Without a reply, the closed connection tells the daemon that this process leaves.
            let _ = connection.leave();
            self.forget();
        }
    }

    fn forget(&self) {
        self.joined.store(false, Release);
        // If there is no memory for a mapping, the old page stays as the daemon left it.
        let _ = self.global.replace(None);
    }

    pub(super) fn leave(&self) {
        self.depart(&mut self.lock());
    }

    pub(super) fn is_joined(&self) -> bool {
        let mut state = self.lock();
        match &state.connection {
            Some(connection) if connection.is_open() => true,
            Some(_) => {
                state.connection = None;
                self.forget();
                false
            }
            None => false,
        }
    }

    pub(super) fn closed(&self) -> Option<OwnedFd> {
        let state = self.lock();
        state.connection.as_ref()?.socket().try_clone().ok()
    }

    pub(super) fn update(
        &self,
        added: &[(usize, ThreadSpec)],
        removed: &[i32],
    ) -> Result<(), JoinError> {
        let mut state = self.lock();
        if let Some(connection) = &state.connection {
            let added: Vec<Thread> = added
                .iter()
                .map(|&(vcpu, thread)| wire_thread(vcpu, thread))
                .collect();
            match connection.update(&added, removed) {
                Err(JoinError::Lost(_)) => {
                    state.connection = None;
                    self.forget();
                }
                other => other?,
            }
        }
        if let Some((_, vcpus)) = &mut state.last_join {
            for spec in vcpus.iter_mut() {
                spec.threads.retain(|thread| !removed.contains(&thread.tid));
            }
            for &(vcpu, thread) in added {
                if let Some(spec) = vcpus.get_mut(vcpu) {
                    spec.threads.push(thread);
                }
            }
        }
        Ok(())
    }

    pub(super) fn census(&self) -> Result<Census, JoinError> {
        let state = self.lock();
        let connection = state.connection.as_ref().ok_or(JoinError::NotJoined)?;
        connection.census()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.leave();
    }
}

fn wire_thread(vcpu: usize, thread: ThreadSpec) -> Thread {
    Thread {
        tid: thread.tid,
        vcpu: vcpu as u16,
        role: thread.role,
    }
}

/// Makes the descriptor `ours` refer to the file of `theirs`. `ours` keeps its number.
fn replace(ours: &OwnedFd, theirs: &OwnedFd) -> io::Result<()> {
    // SAFETY: `dup3` closes and reopens the number in one step, and `ManuallyDrop` does not close
    // the number, so it keeps one owner. A concurrent ring reaches either the old doorbell or the
    // new one.
    let mut alias = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(ours.as_raw_fd()) });
    rustix::io::dup3(theirs, &mut alias, rustix::io::DupFlags::CLOEXEC)?;
    Ok(())
}
