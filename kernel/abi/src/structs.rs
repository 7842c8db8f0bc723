//! Structures in memory that kernel and programs both look at.

use crate::shared::VDSO_NAMES;

/// A range of a program's memory, as the program says.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct UserRange {
    /// Its first address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

/// The argument of `spawn`: which program, and what it gets.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SpawnRequest {
    /// The name of a program in the archive.
    pub program: UserRange,
    /// Bytes for the program, at most [`ProcessInfo::ARGUMENT`].
    pub argument: UserRange,
    /// File descriptors of the caller, `u64`s, that become the program's 0, 1, …
    pub files: UserRange,
    /// The level it starts with, 0 to 62.
    pub level: u64,
    /// The most urgent level it may ever have; not above the caller's own.
    pub ceiling: u64,
    /// How often the share of the caller is halved for it; 0: it is in the same share, and
    /// may outlive the caller.
    pub halvings: u64,
}

impl SpawnRequest {
    /// How many words it has.
    pub const WORDS: usize = size_of::<SpawnRequest>() / 8;

    /// The request as its words.
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

/// The first thing a program looks at, in a page of its own that it cannot write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProcessInfo {
    /// [`VERSION`](crate::VERSION) of the kernel.
    pub version: u64,
    /// The process's number.
    pub process: u64,
    /// The level it was started with.
    pub level: u64,
    /// Ticks of the clock per second.
    pub ticks_per_second: u64,
    /// The addresses of the functions of the vDSO, as
    /// [`VDSO_NAMES`](crate::shared::VDSO_NAMES) lists them.
    pub vdso: [u64; VDSO_NAMES.len()],
    /// Bytes of `argument` that are used.
    pub argument_len: u64,
    /// What `spawn` was given.
    pub argument: [u8; ProcessInfo::ARGUMENT],
}

impl ProcessInfo {
    /// The most bytes of an argument.
    pub const ARGUMENT: usize = 256;
}
