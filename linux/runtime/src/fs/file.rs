//! An open file: reads and writes by position.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use upshift_ring::{Fd, IoBuf, IoBufMut, op};

use super::attempt_history::AttemptHistory;
use super::cached::{self, Attempt};
use super::read::Reading;
use super::{FileStream, Metadata, OpenOptions, advance_position, current_ioprio, sync};
use crate::coroutine::coop;
use crate::net::{start, transfer};
use crate::{blocking, context};

/// An open file, read and written at positions.
///
/// Any number of coroutines may use it at once. For a file with a position of its own see
/// [`into_stream`](File::into_stream).
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
    history: AttemptHistory,
}

impl File {
    /// Wraps a file; `history` follows from the flags with which it was opened.
    pub(super) fn new(fd: OwnedFd, history: AttemptHistory) -> File {
        let fd = Fd::new(fd);
        File { fd, history }
    }

    pub(super) fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Opens a file for reading.
    ///
    /// # Cancellation safety
    /// If the future is dropped, a file that has been opened meanwhile is closed.
    ///
    /// # Errors
    /// The errors of [`OpenOptions::open`].
    pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(path).await
    }

    /// Creates a file, or truncates it, for writing.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the file may have been created or truncated.
    ///
    /// # Errors
    /// The errors of [`OpenOptions::open`].
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .await
    }

    /// Converts a file of the standard library.
    #[must_use]
    pub fn from_std(file: std::fs::File) -> File {
        File {
            fd: Fd::new(OwnedFd::from(file)),
            history: AttemptHistory::unknown(),
        }
    }

    /// Reads at a position, in bytes, at most the capacity of `buffer`. The data starts at the
    /// first byte of the buffer; 0 bytes mean the end of the file. Bytes in the page cache are read
    /// without the ring. The position `u64::MAX` stands for the file's own position, for pipes and
    /// the like.
    ///
    /// # Cancellation safety
    /// A dropped future loses the buffer, but a file's bytes can be read again.
    ///
    /// # Errors
    /// The error of `pread`; and outside a runtime.
    pub fn read_at<B: IoBufMut>(
        &self,
        buffer: B,
        offset: u64,
    ) -> impl Future<Output = (io::Result<usize>, B)> + use<'_, B> {
        Reading::new(self, buffer, offset)
    }

    /// Reads cached bytes into an empty vector, if that is worth a try. Returns false if the read
    /// must go through the ring.
    pub(super) fn read_cached(&self, buffer: &mut Vec<u8>, offset: u64) -> bool {
        let room = cached::piece(buffer.capacity());
        if !self.is_tried() {
            return false;
        }
        let Some(count) = self.read_now(buffer, 0, room, offset) else {
            return false;
        };
        // SAFETY: the kernel has written the first `count` bytes.
        unsafe { buffer.set_filled(count) };
        true
    }

    /// Reads up to `asked` cached bytes, for which there is room, into a buffer behind its first
    /// `filled` bytes. Returns 0 at the end of the file, and `None` if the read must go through the
    /// ring.
    pub(super) fn read_now<B: IoBufMut>(
        &self,
        buffer: &mut B,
        filled: usize,
        asked: usize,
        offset: u64,
    ) -> Option<usize> {
        let offset = offset.checked_add(filled as u64)?;
        // SAFETY: `filled` bytes have been written, and there is room for `asked` more.
        let read = unsafe {
            let start = buffer.io_mut_ptr().add(filled);
            cached::read(self.as_fd(), start, asked, offset)
        };
        match read {
            Attempt::Done(count) => {
                self.history.record_hit();
                coop::charge();
                return Some(count);
            }
            // A read of which only the last part is not cached is not a miss.
            Attempt::WouldBlock if filled > 0 => {}
            Attempt::WouldBlock => self.history.record_miss(),
            Attempt::Unsupported => self.history.disable(),
        }
        None
    }

    /// Returns true if a read is worth a try without the ring; never outside a runtime.
    pub(super) fn is_tried(&self) -> bool {
        self.history.is_due(Some(&self.fd)) && context::with_open(|_| ()).is_some()
    }

    /// Returns true if the file goes through the page cache. Writes to such files are handed to the
    /// kernel a few at a time while something more urgent is in flight.
    pub(super) fn is_cacheable(&self) -> bool {
        self.history.is_cacheable(&self.fd)
    }

    /// Writes at a position, in bytes. May write a part only; returns its length.
    ///
    /// # Cancellation safety
    /// Not cancellation safe: an unknown part may be written.
    ///
    /// # Errors
    /// The error of `pwrite`; and outside a runtime.
    pub async fn write_at<B: IoBuf>(&self, buffer: B, offset: u64) -> (io::Result<usize>, B) {
        transfer!(
            op::WriteAt::new(self.fd.clone(), buffer, offset)
                .ioprio(current_ioprio())
                .copied(self.is_cacheable()),
            buffer
        )
    }

    /// Reads into several buffers at a position.
    ///
    /// # Errors
    /// The errors of [`read_at`](File::read_at).
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
    /// The errors of [`write_at`](File::write_at).
    pub async fn write_vectored_at<B: IoBuf>(
        &self,
        buffers: Vec<B>,
        offset: u64,
    ) -> (io::Result<usize>, Vec<B>) {
        transfer!(
            op::WriteVectored::new(self.fd.clone(), buffers, offset)
                .ioprio(current_ioprio())
                .copied(self.is_cacheable()),
            buffers
        )
    }

    /// Writes all of a buffer at a position, in bytes.
    ///
    /// # Cancellation safety
    /// Not cancellation safe: an unknown part may be written.
    ///
    /// # Errors
    /// The errors of [`write_at`](File::write_at); an unknown part may have been written.
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

    /// Continues after a short write.
    #[cold]
    async fn write_rest<B: IoBuf>(
        &self,
        buffer: B,
        mut written: usize,
        offset: u64,
    ) -> (io::Result<()>, B) {
        let length = buffer.io_len();
        let mut rest = buffer.slice(written..length);
        while written < length {
            let result;
            (result, rest) = self.write_at(rest, advance_position(offset, written)).await;
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), rest.into_inner()),
                Ok(count) => written += count,
                Err(error) => return (Err(error), rest.into_inner()),
            }
            rest = rest.into_inner().slice(written..length);
        }
        (Ok(()), rest.into_inner())
    }

    /// Waits until data and metadata are on the device, for everything written to this file before
    /// the call, by any thread or process. Calls that wait at the same time share an `fsync`.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time; other calls that wait are not disturbed.
    ///
    /// # Errors
    /// The error of `fsync`; and outside a runtime.
    pub async fn sync_all(&self) -> io::Result<()> {
        sync::sync(&self.fd, true).await
    }

    /// Waits until the data is on the device; see [`sync_all`](File::sync_all).
    ///
    /// # Errors
    /// The error of `fdatasync`; and outside a runtime.
    pub async fn sync_data(&self) -> io::Result<()> {
        sync::sync(&self.fd, false).await
    }

    /// Returns length, kind, times, owner and permissions.
    ///
    /// # Errors
    /// The error of `statx`; and outside a runtime.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        Ok(Metadata::new(
            *start(op::Statx::from_fd(self.fd.clone()))?.await?,
        ))
    }

    /// Truncates the file, or extends it by a hole, to `length` bytes.
    ///
    /// # Errors
    /// The error of `ftruncate`; and outside a runtime.
    pub async fn set_len(&self, length: u64) -> io::Result<()> {
        match start(op::Ftruncate::new(self.fd.clone(), length))?.await {
            // Linux before 6.9 has no such operation on the ring.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let file = std::fs::File::from(self.fd.as_fd().try_clone_to_owned()?);
                blocking::run(move || file.set_len(length)).await
            }
            result => result,
        }
    }

    /// Changes the permissions.
    ///
    /// # Errors
    /// `PermissionDenied`, …
    pub async fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        let file = std::fs::File::from(self.fd.as_fd().try_clone_to_owned()?);
        blocking::run(move || file.set_permissions(permissions)).await
    }

    /// Converts the file into a stream, read and written from front to back, with a position of
    /// its own that starts at 0.
    #[must_use]
    pub fn into_stream(self) -> FileStream {
        FileStream::new(self)
    }

    /// Returns the length of the file in bytes as this machine knows it, without asking the
    /// server of a network file system; `length` if there is no answer.
    pub(super) fn known_len(&self, length: u64) -> u64 {
        // SAFETY: a zeroed `statx` is valid, and lives during the call; the path ends with a NUL.
        unsafe {
            let mut answer: libc::statx = std::mem::zeroed();
            let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
            let (fd, path) = (self.fd.as_raw_fd(), c"".as_ptr());
            match libc::statx(fd, path, flags, libc::STATX_SIZE, &raw mut answer) {
                0 => answer.stx_size,
                _ => length,
            }
        }
    }

    /// Reads cached bytes at a position that was the end of the file, into an empty vector.
    pub(super) fn read_behind_end(&self, buffer: &mut Vec<u8>, offset: u64) {
        if !self.is_cacheable() {
            return;
        }
        let room = cached::piece(buffer.capacity());
        // SAFETY: the empty vector has room for `room` bytes, at most its capacity.
        let read = unsafe { cached::read(self.as_fd(), buffer.as_mut_ptr(), room, offset) };
        if let Attempt::Done(count) = read {
            // SAFETY: the kernel has written the first `count` bytes.
            unsafe { buffer.set_filled(count) };
        }
    }

    /// Returns the length of the file in bytes.
    ///
    /// # Errors
    /// The error of `statx`; and outside a runtime.
    pub async fn len(&self) -> io::Result<u64> {
        Ok(start(op::Statx::from_fd(self.fd.clone()))?.await?.stx_size)
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
