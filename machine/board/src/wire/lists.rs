//! What a message lists: CPUs, threads, thread ids. Views of its bytes, checked when it was read; nothing is copied.

/// Bytes of one [`Thread`].
pub(super) const THREAD: usize = 8;

/// What a thread does for its vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs coroutines.
    Worker,
    /// Sleeps until something arrives, says so on the local page and rings: runs above all workers, within a budget.
    Dispatcher,
}

/// One thread of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// Its id, as `gettid` says.
    pub tid: i32,
    /// The vCPU it serves: index into the registration.
    pub vcpu: u16,
    /// What it does.
    pub role: Role,
}

/// CPUs of a message: 4 bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpus<'a>(pub(super) &'a [u8]);

/// Threads of a message: 8 bytes each, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads<'a>(pub(super) &'a [u8]);

/// Thread ids of a message: 4 bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tids<'a>(pub(super) &'a [u8]);

impl Cpus<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len() / 4
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0
            .as_chunks()
            .0
            .iter()
            .map(|cpu| u32::from_le_bytes(*cpu))
    }
}

impl Threads<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len() / THREAD
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each.
    pub fn iter(&self) -> impl Iterator<Item = Thread> + '_ {
        self.0.as_chunks().0.iter().filter_map(thread)
    }
}

impl Tids<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len() / 4
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each.
    pub fn iter(&self) -> impl Iterator<Item = i32> + '_ {
        self.0
            .as_chunks()
            .0
            .iter()
            .map(|tid| i32::from_le_bytes(*tid))
    }
}

pub(super) fn thread(bytes: &[u8; THREAD]) -> Option<Thread> {
    let [t0, t1, t2, t3, v0, v1, r0, r1] = *bytes;
    Some(Thread {
        tid: i32::from_le_bytes([t0, t1, t2, t3]),
        vcpu: u16::from_le_bytes([v0, v1]),
        role: match u16::from_le_bytes([r0, r1]) {
            0 => Role::Worker,
            1 => Role::Dispatcher,
            _ => return None,
        },
    })
}
