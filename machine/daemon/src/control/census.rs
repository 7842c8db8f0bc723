//! Limits the memory of census replies. A census is a report about all registered and assigned
//! processes, which the daemon sends as a memory file.
//!
//! The memory of the file counts as the daemon's memory while any client holds the file, read or
//! unread. So the daemon keeps the last [`FILES_PER_USER`] files of each user, and empties the
//! oldest file when a further census is requested. A user has at most this number of full files,
//! however many connections the user has. Clients can neither write to the files nor empty them.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, SealFlags};

/// Maximum number of full files of one user, which is enough for two clients at a time, each of
/// which reads one file while the daemon sends it another.
const FILES_PER_USER: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Censuses {
    files: HashMap<u32, VecDeque<OwnedFd>>,
}

impl Censuses {
    pub(super) fn file(&mut self, user: u32, text: &str) -> io::Result<OwnedFd> {
        let file = upshift_board::os::memory_file("upshift-census", 0)?;
        // Only the daemon can open the file again for writing.
        rustix::fs::fchmod(&file, Mode::RUSR)?;
        let reading = rustix::fs::open(
            format!("/proc/self/fd/{}", file.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut writing = File::from(file);
        writing.write_all(text.as_bytes())?;
        rustix::fs::fcntl_add_seals(&writing, SealFlags::WRITE | SealFlags::GROW)?;
        let files = self.files.entry(user).or_default();
        if files.len() >= FILES_PER_USER
            && let Some(oldest) = files.pop_front()
        {
            let _ = rustix::fs::ftruncate(oldest.as_fd(), 0);
        }
        files.push_back(writing.into());
        Ok(reading)
    }

    /// Empties the files of `user`, whose last connection has closed.
    pub(super) fn forget(&mut self, user: u32) {
        for file in self.files.remove(&user).unwrap_or_default() {
            let _ = rustix::fs::ftruncate(file.as_fd(), 0);
        }
    }
}
