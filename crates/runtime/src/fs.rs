//! Files over the ring: reads and writes by position.
//!
//! The I/O priority of each operation follows from the level of the coroutine
//! that starts it: eight levels share one of the eight best-effort classes of
//! `ioprio_set(2)`, so 0..=7 is class 0, 56..=63 is class 7. Schedulers of block
//! devices that know priorities (bfq, mq-deadline) honour it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use upshift_core::Level;
use upshift_ring::{Fd, IoBuf, IoBufMut, op};

use crate::context;
use crate::net::{start, transfer};

const BEST_EFFORT: u16 = 2 << 13;

/// The I/O priority of a level, as `ioprio_set(2)` encodes it.
fn ioprio(level: Level) -> u16 {
    BEST_EFFORT | u16::from(level.get() / 8)
}

fn current_ioprio() -> u16 {
    ioprio(context::current_level().unwrap_or_default())
}

/// How to open a file, as [`std::fs::OpenOptions`].
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    flags: i32,
    mode: Option<u32>,
}

impl OpenOptions {
    /// Nothing allowed yet.
    #[must_use]
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// May it be read?
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// May it be written?
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// Do writes go to the end, wherever they are addressed to?
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// Is what it contains thrown away?
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Is it created if it is not there?
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// Must it not be there yet?
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Further flags of `open(2)`, such as `O_DIRECT`.
    pub fn custom_flags(&mut self, flags: i32) -> &mut OpenOptions {
        self.flags = flags;
        self
    }

    /// The permissions of a file that is created (default 0o666, less the umask).
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = Some(mode);
        self
    }

    /// Opens a file.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, …; `InvalidInput` for a combination that
    /// means nothing; and outside a runtime.
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let access = match (self.read, self.write || self.append) {
            (true, false) => libc::O_RDONLY,
            (false, true) => libc::O_WRONLY,
            (true, true) => libc::O_RDWR,
            (false, false) => return Err(invalid("open a file for reading or writing")),
        };
        let creates = self.create || self.create_new;
        if (self.truncate || creates) && access == libc::O_RDONLY {
            return Err(invalid("a file is created or truncated for writing only"));
        }
        if self.truncate && self.append {
            return Err(invalid("a file is either truncated or appended to"));
        }
        let flag = |on: bool, flag: i32| if on { flag } else { 0 };
        let flags = access
            | self.flags
            | flag(self.append, libc::O_APPEND)
            | flag(self.truncate, libc::O_TRUNC)
            | flag(creates, libc::O_CREAT)
            | flag(self.create_new, libc::O_EXCL);
        let open = op::OpenAt::new(None, path, flags, self.mode.unwrap_or(0o666))?;
        Ok(File {
            fd: Fd::new(start(open)?.await?),
        })
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// An open file.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-doc-{}", std::process::id()));
/// use upshift::fs::File;
///
/// let file = File::create(&path).await?;
/// file.write_all_at("hello", 0).await.0?;
/// file.sync_all().await?;
/// let file = File::open(&path).await?;
/// let (count, buffer) = file.read_at(vec![0; 16], 1).await;
/// assert_eq!(&buffer[..count?], b"ello");
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct File {
    fd: Fd,
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(path).await
    }

    /// Creates a file, or empties it, for writing.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .await
    }

    /// Takes over a file of the standard library.
    #[must_use]
    pub fn from_std(file: std::fs::File) -> File {
        File {
            fd: Fd::new(OwnedFd::from(file)),
        }
    }

    /// Reads at a position, in bytes, at most what the buffer holds. 0 bytes: the
    /// end of the file.
    ///
    /// # Errors
    /// What `pread` would answer; and outside a runtime.
    pub async fn read_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> (io::Result<usize>, B) {
        transfer!(
            op::ReadAt::new(self.fd.clone(), buffer, offset).ioprio(current_ioprio()),
            buffer
        )
    }

    /// Writes at a position, in bytes. May write less than all.
    ///
    /// # Errors
    /// What `pwrite` would answer; and outside a runtime.
    pub async fn write_at<B: IoBuf>(&self, buffer: B, offset: u64) -> (io::Result<usize>, B) {
        transfer!(
            op::WriteAt::new(self.fd.clone(), buffer, offset).ioprio(current_ioprio()),
            buffer
        )
    }

    /// Reads into several buffers at a position.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    pub async fn read_vectored_at<B: IoBufMut>(
        &self,
        buffers: Vec<B>,
        offset: u64,
    ) -> (io::Result<usize>, Vec<B>) {
        transfer!(
            op::ReadVectored::new(self.fd.clone(), buffers, offset).ioprio(current_ioprio()),
            buffers
        )
    }

    /// Writes several buffers at a position.
    ///
    /// # Errors
    /// As [`write_at`](File::write_at).
    pub async fn write_vectored_at<B: IoBuf>(
        &self,
        buffers: Vec<B>,
        offset: u64,
    ) -> (io::Result<usize>, Vec<B>) {
        transfer!(
            op::WriteVectored::new(self.fd.clone(), buffers, offset).ioprio(current_ioprio()),
            buffers
        )
    }

    /// Writes all of a buffer at a position.
    ///
    /// # Errors
    /// As [`write_at`](File::write_at); an unknown part may have been written.
    pub async fn write_all_at<B: IoBuf>(&self, buffer: B, offset: u64) -> (io::Result<()>, B) {
        let length = buffer.io_len();
        let (result, buffer) = self.write_at(buffer, offset).await;
        match result {
            Ok(written) if written == length => (Ok(()), buffer),
            Ok(written) => {
                let (result, buffer) = self.write_rest(buffer, written, offset).await;
                (result, buffer)
            }
            Err(error) => (Err(error), buffer),
        }
    }

    /// Writes what a short write has left: rare, so it may copy.
    async fn write_rest<B: IoBuf>(
        &self,
        buffer: B,
        mut written: usize,
        offset: u64,
    ) -> (io::Result<()>, B) {
        let length = buffer.io_len();
        while written < length {
            // SAFETY: the buffer is valid for `length` bytes.
            let rest = unsafe {
                std::slice::from_raw_parts(buffer.io_ptr().add(written), length - written)
            };
            let rest = rest.to_vec();
            match self.write_at(rest, offset + written as u64).await.0 {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buffer),
                Ok(count) => written += count,
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Waits until data and metadata are on the device.
    ///
    /// # Errors
    /// What `fsync` answers; and outside a runtime.
    pub async fn sync_all(&self) -> io::Result<()> {
        start(op::Fsync::new(self.fd.clone()))?.await
    }

    /// Waits until the data is on the device.
    ///
    /// # Errors
    /// What `fdatasync` answers; and outside a runtime.
    pub async fn sync_data(&self) -> io::Result<()> {
        start(op::Fsync::data(self.fd.clone()))?.await
    }

    /// The length of the file in bytes.
    ///
    /// # Errors
    /// What `statx` answers; and outside a runtime.
    pub async fn len(&self) -> io::Result<u64> {
        Ok(start(op::Statx::of(self.fd.clone()))?.await?.stx_size)
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_urgent_levels_get_better_io_priorities() {
        assert_eq!(ioprio(Level::MOST_URGENT), BEST_EFFORT);
        assert_eq!(ioprio(Level::DEFAULT), BEST_EFFORT | 4);
        assert_eq!(ioprio(Level::LEAST_URGENT), BEST_EFFORT | 7);
    }
}
