//! The lists of a message: CPUs, threads and thread ids. A list is a view of the message's bytes,
//! which the decoder has checked; nothing is copied.

/// Length of an encoded thread, in bytes.
pub(super) const THREAD_LEN: usize = 8;

/// Function of a vCPU's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A thread that polls coroutines.
    Worker,
    /// A thread that sleeps until an event arrives, publishes the event's level on the local page
    /// and rings. It runs above all workers, within a budget.
    Dispatcher,
}

/// A thread of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// Thread id (`gettid`).
    pub tid: i32,
    /// Index of the vCPU in the registration.
    pub vcpu: u16,
    /// Function of the thread.
    pub role: Role,
}

/// The CPUs of a message: 4 bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpus<'a>(pub(super) &'a [u8]);

/// The threads of a message: 8 bytes each, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads<'a>(pub(super) &'a [u8]);

/// The thread ids of a message: 4 bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tids<'a>(pub(super) &'a [u8]);

impl Cpus<'_> {
    /// Returns the number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len() / 4
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the CPUs.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0
            .as_chunks()
            .0
            .iter()
            .map(|cpu| u32::from_le_bytes(*cpu))
    }
}

impl Threads<'_> {
    /// Returns the number of threads.
    pub fn len(&self) -> usize {
        self.0.len() / THREAD_LEN
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the threads.
    pub fn iter(&self) -> impl Iterator<Item = Thread> + '_ {
        self.0.as_chunks().0.iter().filter_map(thread)
    }
}

impl Tids<'_> {
    /// Returns the number of thread ids.
    pub fn len(&self) -> usize {
        self.0.len() / 4
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the thread ids.
    pub fn iter(&self) -> impl Iterator<Item = i32> + '_ {
        self.0
            .as_chunks()
            .0
            .iter()
            .map(|tid| i32::from_le_bytes(*tid))
    }
}

pub(super) fn thread(bytes: &[u8; THREAD_LEN]) -> Option<Thread> {
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
