//! [`Censuses`]: the memory of what was answered.
//!
//! A census is handed out as a memory file, and its memory is the daemon's for as long as any client holds it, read or unread. So the
//! daemon keeps the last [`KEPT`] files of each user, and empties the oldest when a further one is asked for: a user has at most as many
//! full ones, however many connections it has and whatever it does with them. What clients get cannot be written to, nor emptied.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, SealFlags};

/// Full files of one user at once: one being read, one on its way, twice.
const KEPT: usize = 4;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Censuses {
    of: HashMap<u32, VecDeque<OwnedFd>>,
}

impl Censuses {
    /// A file with `text` for `user`, opened for reading, at its beginning.
    pub(super) fn file(&mut self, user: u32, text: &str) -> io::Result<OwnedFd> {
        let file = upshift_board::os::memory_file("upshift-census", 0)?;
        // Only the daemon can open it again for writing.
        rustix::fs::fchmod(&file, Mode::RUSR)?;
        let reading = rustix::fs::open(
            format!("/proc/self/fd/{}", file.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut writing = File::from(file);
        writing.write_all(text.as_bytes())?;
        rustix::fs::fcntl_add_seals(&writing, SealFlags::WRITE | SealFlags::GROW)?;
        let kept = self.of.entry(user).or_default();
        if kept.len() >= KEPT
            && let Some(oldest) = kept.pop_front()
        {
            let _ = rustix::fs::ftruncate(oldest.as_fd(), 0);
        }
        kept.push_back(writing.into());
        Ok(reading)
    }

    /// The last connection of `user` is gone: its files are not waited for any more.
    pub(super) fn forget(&mut self, user: u32) {
        for file in self.of.remove(&user).unwrap_or_default() {
            let _ = rustix::fs::ftruncate(file.as_fd(), 0);
        }
    }
}
