//! Shares memory among the ranks of one node (a host), and lets them wake each other.
//!
//! Each rank has a page, which contains whether it runs, its heartbeats, whether it sleeps, and the
//! level-0 (most urgent) request that it began last. Each rank also has a datagram socket, by which
//! other ranks wake it.
//!
//! MPI has no function to sleep until a message arrives. A rank that has seen no completion for a
//! while marks its page as asleep. Another rank that then starts or completes an operation with the
//! sleeping rank wakes that rank by a datagram. A datagram is only a hint. A lost datagram costs
//! only time, because a sleeping rank also checks periodically. Ranks of different nodes send each
//! other no datagrams.
//!
//! Only its own rank writes to a page, except for `death_reported`, and `asleep`, which a waking
//! rank clears. All fields are atomic words. The description of a request has a sequence number and
//! a length, which are checked. So a description that was only partly written can at worst name a
//! wrong request.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::sync::{Mutex, PoisonError};

use crate::peers::Peers;

/// Number of words of the longest description of a request.
const REQUEST_WORDS: usize = 24;

/// Maximum length in bytes of the description of a request in a page.
pub(crate) const MAX_REQUEST_TEXT: usize = REQUEST_WORDS * 8;

/// Phase of a rank that has not joined yet, or has left the job normally.
pub(crate) const PHASE_AWAY: u32 = 0;
pub(crate) const PHASE_RUNNING: u32 = 1;

/// The page of a rank in the shared memory.
#[repr(C, align(512))]
pub(crate) struct Page {
    pub(crate) pid: AtomicU32,
    pub(crate) phase: AtomicU32,
    asleep: AtomicU32,
    /// Set when a surviving rank has reported the death of this rank.
    pub(crate) death_reported: AtomicU32,
    /// A rank of another host whose loss this rank has noticed: its number plus one (high half) and
    /// its pid.
    lost_rank: AtomicU64,
    pub(crate) heartbeats: AtomicU64,
    /// Incremented before and after a request is recorded, so it is odd meanwhile.
    sequence: AtomicU32,
    length: AtomicU32,
    request: [AtomicU64; REQUEST_WORDS],
}

/// The ranks of this node, and their shared memory.
pub(crate) struct Node {
    pages: NonNull<Page>,
    /// World ranks, in the order of the pages.
    pub(crate) ranks: Vec<u32>,
    own_index: usize,
    socket: UnixDatagram,
    addresses: Vec<SocketAddr>,
    request_lock: Mutex<()>,
    /// Set if all ranks together have more vCPUs than the node has CPUs.
    pub(crate) is_crowded: bool,
}

// SAFETY: the mapping is shared and lives as long as the node; all its fields are atomic.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

/// Creates the file of the pages, which is unlinked after all ranks have opened it.
pub(crate) fn create(path: &Path, ranks: usize) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.set_len((ranks * size_of::<Page>()) as u64)
}

fn address(path: &Path, rank: u32) -> io::Result<SocketAddr> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    SocketAddr::from_abstract_name(format!("{name}-{rank}"))
}

impl Node {
    /// Maps the pages of the ranks with the world numbers `ranks`; this rank's page has index
    /// `own_index`.
    pub(crate) fn open(
        path: &Path,
        ranks: Vec<u32>,
        own_index: usize,
        vcpus: usize,
    ) -> io::Result<Node> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let addresses = ranks
            .iter()
            .map(|rank| address(path, *rank))
            .collect::<io::Result<Vec<_>>>()?;
        let socket = UnixDatagram::bind_addr(&addresses[own_index])?;
        socket.set_nonblocking(true)?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let node = Node {
            pages: map(&file, ranks.len())?,
            is_crowded: ranks.len() * vcpus > cpus,
            ranks,
            own_index,
            socket,
            addresses,
            request_lock: Mutex::new(()),
        };
        node.own_page().pid.store(std::process::id(), Relaxed);
        node.own_page().phase.store(PHASE_RUNNING, Release);
        Ok(node)
    }

    pub(crate) fn page(&self, index: usize) -> &Page {
        assert!(index < self.ranks.len(), "no rank has this index");
        // SAFETY: the page is within the mapping, and all its fields are atomic.
        unsafe { self.pages.add(index).as_ref() }
    }

    /// Reports the loss of a rank of another host to the ranks of this node.
    pub(crate) fn report_lost_rank(&self, rank: u32, pid: u32) {
        let rank_and_pid = (u64::from(rank) + 1) << 32 | u64::from(pid);
        self.own_page().lost_rank.store(rank_and_pid, Release);
    }

    /// Returns a rank of another host whose loss a rank of this node has reported, and its pid.
    pub(crate) fn lost_rank(&self) -> Option<(u32, u32)> {
        let pages = (0..self.ranks.len()).map(|index| self.page(index));
        let rank_and_pid = pages.map(|page| page.lost_rank.load(Acquire)).max()?;
        Some((
            ((rank_and_pid >> 32) as u32).checked_sub(1)?,
            rank_and_pid as u32,
        ))
    }

    pub(crate) fn own_page(&self) -> &Page {
        self.page(self.own_index)
    }

    pub(crate) fn is_own_page(&self, index: usize) -> bool {
        index == self.own_index
    }

    /// Returns a duplicate of the socket for the runtime.
    pub(crate) fn socket(&self) -> io::Result<UnixDatagram> {
        self.socket.try_clone()
    }

    /// Marks this rank as asleep. Must be called before its last look.
    pub(crate) fn sleep(&self) {
        self.own_page().asleep.store(1, SeqCst);
        // Either the waking rank sees the mark, or the last look sees the effect of the waking
        // rank's operation.
        fence(SeqCst);
    }

    /// Marks this rank as awake.
    pub(crate) fn wake(&self) {
        self.own_page().asleep.store(0, Relaxed);
    }

    /// Wakes the ranks of `peers` that are marked as asleep.
    pub(crate) fn wake_sleepers(&self, peers: &Peers) {
        let world: &[u32] = match peers {
            Peers::None => return,
            Peers::One(rank) => std::slice::from_ref(rank),
            Peers::All(ranks) => ranks,
        };
        fence(SeqCst);
        for rank in world {
            let Ok(index) = self.ranks.binary_search(rank) else {
                continue;
            };
            let asleep = &self.page(index).asleep;
            if index != self.own_index && asleep.load(Relaxed) != 0 && asleep.swap(0, SeqCst) != 0 {
                // If the queue is full, it already contains a datagram.
                let _ = self.socket.send_to_addr(&[1], &self.addresses[index]);
            }
        }
    }

    /// Records the level-0 request that begins now, for the message that reports this rank if it
    /// dies.
    pub(crate) fn record_request(&self, text: &str) {
        let text = &text.as_bytes()[..text.len().min(MAX_REQUEST_TEXT)];
        let page = self.own_page();
        let _guard = self
            .request_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let sequence = page.sequence.load(Relaxed);
        page.sequence.store(sequence.wrapping_add(1), Relaxed);
        fence(Release);
        for (word, bytes) in page.request.iter().zip(text.chunks(8)) {
            let mut buffer = [0; 8];
            buffer[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(buffer), Relaxed);
        }
        page.length.store(text.len() as u32, Relaxed);
        page.sequence.store(sequence.wrapping_add(2), Release);
    }

    /// Returns the last level-0 request of a rank that no longer writes.
    pub(crate) fn last_request(&self, index: usize) -> Option<String> {
        let page = self.page(index);
        let sequence = page.sequence.load(Acquire);
        let length = (page.length.load(Relaxed) as usize).min(MAX_REQUEST_TEXT);
        let mut bytes: Vec<u8> = page
            .request
            .iter()
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        bytes.truncate(length);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match sequence {
            0 => None,
            complete if complete.is_multiple_of(2) => Some(text),
            _ => Some(format!("{text} (it died while it recorded this)")),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: `map` created the mapping with this length, and no other pointer to it remains.
        unsafe {
            libc::munmap(
                self.pages.as_ptr().cast(),
                self.ranks.len() * size_of::<Page>(),
            )
        };
    }
}

fn map(file: &File, ranks: usize) -> io::Result<NonNull<Page>> {
    // SAFETY: the call creates a new mapping, so it changes no memory in use; the file has this
    // length.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            ranks * size_of::<Page>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    match NonNull::new(address.cast()) {
        Some(pages) if address != libc::MAP_FAILED => Ok(pages),
        _ => Err(io::Error::last_os_error()),
    }
}
