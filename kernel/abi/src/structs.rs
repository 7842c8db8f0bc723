//! Structures in memory that kernel and programs share.

use crate::shared::VDSO_NAMES;

/// A range of a program's memory, as given by the program.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct UserRange {
    /// First address of the range.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The argument of `spawn`: the program, and its parameters.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SpawnRequest {
    /// Name of a program in the archive or on the disk.
    pub program: UserRange,
    /// Argument of the program, at most [`ProcessInfo::ARGUMENT`] bytes.
    pub argument: UserRange,
    /// File descriptors of the caller, as `u64`s, that become descriptors 0, 1, … of the program.
    pub files: UserRange,
    /// Level that the process starts with, 0 to 62.
    pub level: u64,
    /// Most urgent level that the process may have; not above the caller's own.
    pub ceiling: u64,
    /// Number of halvings of the caller's share for the process; with 0 the process is in the same
    /// share, and may outlive the caller.
    pub halvings: u64,
}

impl SpawnRequest {
    /// Number of words.
    pub const WORDS: usize = size_of::<SpawnRequest>() / 8;

    /// Creates a request from its words.
    #[must_use]
    pub fn from_words(words: [u64; SpawnRequest::WORDS]) -> SpawnRequest {
        let range = |at: usize| UserRange {
            start: words[at],
            len: words[at + 1],
        };
        SpawnRequest {
            program: range(0),
            argument: range(2),
            files: range(4),
            level: words[6],
            ceiling: words[7],
            halvings: words[8],
        }
    }
}

const _: () = assert!(size_of::<SpawnRequest>() == 72);

/// Start parameters of a program, in a separate read-only page.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProcessInfo {
    /// [`VERSION`](crate::VERSION) of the kernel.
    pub version: u64,
    /// Number of the process.
    pub process: u64,
    /// Level that the process was started with.
    pub level: u64,
    /// Ticks of the clock per second.
    pub ticks_per_second: u64,
    /// Addresses of the functions of the vDSO, in the order of
    /// [`VDSO_NAMES`](crate::shared::VDSO_NAMES).
    pub vdso: [u64; VDSO_NAMES.len()],
    /// Number of used bytes of `argument`.
    pub argument_len: u64,
    /// The argument that was passed to `spawn`.
    pub argument: [u8; ProcessInfo::ARGUMENT],
}

impl ProcessInfo {
    /// Maximum length in bytes of an argument.
    pub const ARGUMENT: usize = 256;
}

/// The state of a process, as the system call `process` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessStatus {
    /// Number of the process.
    pub number: u64,
    /// Number of the process that may wait for this one, or 0 if there is none.
    pub parent: u64,
    /// Level of the most urgent thread.
    pub level: u64,
    /// Most urgent level that the process may have.
    pub ceiling: u64,
    /// Number of threads that have not ended.
    pub threads: u64,
    /// Number of threads that run on a hart.
    pub running: u64,
    /// Number of threads that wait for a hart.
    pub ready: u64,
    /// 1 if the process has ended, but was not waited for.
    pub ended: u64,
    /// Number of used bytes of `name`.
    pub name_len: u64,
    /// Name of the program, as much as fits.
    pub name: [u8; ProcessStatus::NAME],
}

impl ProcessStatus {
    /// Maximum length in bytes of a name.
    pub const NAME: usize = 64;
    /// Size of a status in bytes.
    pub const BYTES: usize = size_of::<ProcessStatus>();

    /// Writes the status as bytes, word by word.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ProcessStatus::BYTES] {
        let mut bytes = [0; ProcessStatus::BYTES];
        let words = [
            self.number,
            self.parent,
            self.level,
            self.ceiling,
            self.threads,
            self.running,
            self.ready,
            self.ended,
            self.name_len,
        ];
        let (first, name) = bytes.split_at_mut(size_of_val(&words));
        write_words(&words, first);
        name.copy_from_slice(&self.name);
        bytes
    }

    /// Reads a status from its bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; ProcessStatus::BYTES]) -> ProcessStatus {
        let word = |at: usize| read_word(bytes, at);
        let mut name = [0; ProcessStatus::NAME];
        name.copy_from_slice(&bytes[ProcessStatus::BYTES - ProcessStatus::NAME..]);
        ProcessStatus {
            number: word(0),
            parent: word(1),
            level: word(2),
            ceiling: word(3),
            threads: word(4),
            running: word(5),
            ready: word(6),
            ended: word(7),
            name_len: word(8),
            name,
        }
    }

    /// Returns the name of the program.
    #[must_use]
    pub fn name(&self) -> &str {
        let len = (self.name_len as usize).min(ProcessStatus::NAME);
        core::str::from_utf8(&self.name[..len]).unwrap_or("?")
    }
}

/// The time of a hart since it started, in ticks, as the system call `hart` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct HartStatus {
    /// Number of the process that runs on the hart, or 0 if there is none.
    pub process: u64,
    /// Time since the machine started.
    pub now: u64,
    /// Time of threads by level, including their system calls; the last entry is idle time. The
    /// remaining time belongs to kernel coroutines.
    pub ticks: [u64; HartStatus::LEVELS],
}

impl HartStatus {
    /// Number of levels, including idleness.
    pub const LEVELS: usize = 64;
    /// Level at which an idle hart is counted.
    pub const IDLE: usize = HartStatus::LEVELS - 1;
    /// Size of a status in bytes.
    pub const BYTES: usize = size_of::<HartStatus>();

    /// Writes the status as bytes, word by word.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HartStatus::BYTES] {
        let mut bytes = [0; HartStatus::BYTES];
        let (first, ticks) = bytes.split_at_mut(16);
        write_words(&[self.process, self.now], first);
        write_words(&self.ticks, ticks);
        bytes
    }

    /// Reads a status from its bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; HartStatus::BYTES]) -> HartStatus {
        HartStatus {
            process: read_word(bytes, 0),
            now: read_word(bytes, 1),
            ticks: core::array::from_fn(|level| read_word(bytes, 2 + level)),
        }
    }
}

fn write_words(words: &[u64], to: &mut [u8]) {
    for (bytes, word) in to.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

fn read_word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(8 * at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_status_survives_a_round_trip() {
        let mut status = ProcessStatus {
            number: 257,
            parent: 1,
            level: 20,
            ceiling: 3,
            threads: 4,
            running: 2,
            ready: 1,
            ended: 0,
            name_len: 5,
            name: [0; ProcessStatus::NAME],
        };
        status.name[..5].copy_from_slice(b"hello");
        assert_eq!(ProcessStatus::from_bytes(&status.to_bytes()), status);
        assert_eq!(status.name(), "hello");
        let long = ProcessStatus {
            name_len: u64::MAX,
            ..status
        };
        assert!(long.name().starts_with("hello"));
    }

    #[test]
    fn a_hart_status_survives_a_round_trip() {
        let status = HartStatus {
            process: 256,
            now: u64::MAX,
            ticks: core::array::from_fn(|level| level as u64 * 1_000),
        };
        assert_eq!(HartStatus::from_bytes(&status.to_bytes()), status);
    }
}
