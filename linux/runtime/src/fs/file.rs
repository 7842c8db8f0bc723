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
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-open-{}", std::process::id()));
    /// use upshift::fs::{self, File};
    ///
    /// assert_eq!(File::open(&path).await.unwrap_err().kind(), std::io::ErrorKind::NotFound);
    /// fs::write(&path, "hello").await?;
    /// assert_eq!(File::open(&path).await?.len().await?, 5);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
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
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-create-{}", std::process::id()));
    /// use upshift::fs::{self, File};
    ///
    /// fs::write(&path, "old contents").await?;
    /// let file = File::create(&path).await?; // Truncates the file.
    /// file.write_all_at("new", 0).await.0?;
    /// assert_eq!(fs::read(&path).await?, b"new");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .await
    }

    /// Converts a file of the standard library.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::fs::File;
    ///
    /// let file = File::from_std(std::fs::File::open("/usr")?);
    /// assert!(file.metadata().await?.is_dir());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn from_std(file: std::fs::File) -> File {
        File {
            fd: Fd::new(OwnedFd::from(file)),
            history: AttemptHistory::unknown(),
        }
    }

    /// Reads at a position, in bytes, at most the capacity of `buffer`. The data starts at the
    /// first byte of the buffer; 0 bytes mean the end of the file. Bytes in the page cache are read
    /// without the ring. The position `u64::MAX` stands for the file's own position; use it for
    /// pipes and the like.
    ///
    /// # Cancellation safety
    /// A dropped future loses the buffer, but a file's bytes can be read again.
    ///
    /// # Errors
    /// The error of `pread`; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-readat-{}", std::process::id()));
    /// use upshift::fs::{self, File};
    ///
    /// fs::write(&path, "hello").await?;
    /// let file = File::open(&path).await?;
    /// let (count, buffer) = file.read_at(vec![0; 16], 3).await;
    /// assert_eq!(&buffer[..count?], b"lo");
    /// let (count, _) = file.read_at(buffer, 5).await; // The buffer is used again.
    /// assert_eq!(count?, 0);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
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

    /// Reads up to `max` cached bytes, for which there is room, into a buffer behind its first
    /// `filled` bytes. Returns 0 at the end of the file, and `None` if the read must go through the
    /// ring.
    pub(super) fn read_now<B: IoBufMut>(
        &self,
        buffer: &mut B,
        filled: usize,
        max: usize,
        offset: u64,
    ) -> Option<usize> {
        let offset = offset.checked_add(filled as u64)?;
        // SAFETY: behind the `filled` bytes that have been written, the buffer is valid for writes
        // of `max` more.
        let read = unsafe {
            let start = buffer.io_mut_ptr().add(filled);
            cached::read(self.as_fd(), start, max, offset)
        };
        match read {
            Attempt::Done(count) => {
                self.history.record_hit();
                coop::charge();
                return Some(count);
            }
            // If only the last part of a read is not cached, the read does not count as a miss.
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

    /// Writes at a position, in bytes. May write only a part, and returns the length of the part.
    ///
    /// # Cancellation safety
    /// Not cancellation safe: an unknown part may be written.
    ///
    /// # Errors
    /// The error of `pwrite`; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-writeat-{}", std::process::id()));
    /// use upshift::fs::{self, File};
    ///
    /// let file = File::create(&path).await?;
    /// let (written, buffer) = file.write_at(b"hello".to_vec(), 0).await;
    /// assert!(written? <= buffer.len()); // Perhaps a part only: see `write_all_at`.
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
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
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-readv-{}", std::process::id()));
    /// use upshift::fs::{self, File};
    ///
    /// fs::write(&path, "headbody").await?;
    /// let buffers = vec![vec![0; 4], vec![0; 16]];
    /// let (count, buffers) = File::open(&path).await?.read_vectored_at(buffers, 0).await;
    /// assert_eq!(count?, 8);
    /// assert_eq!((&buffers[0][..], &buffers[1][..4]), (&b"head"[..], &b"body"[..]));
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
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
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-writev-{}", std::process::id()));
    /// use upshift::fs::{self, File};
    ///
    /// let file = File::create(&path).await?;
    /// let (count, _) = file.write_vectored_at(vec!["head", "body"], 0).await;
    /// assert_eq!(count?, 8);
    /// assert_eq!(fs::read(&path).await?, b"headbody");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
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
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-writeall-{}", std::process::id()));
    /// use upshift::fs::{self, File};
    ///
    /// let file = File::create(&path).await?;
    /// file.write_all_at("hello world", 0).await.0?;
    /// file.write_all_at("W", 6).await.0?;
    /// assert_eq!(fs::read(&path).await?, b"hello World");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
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

    /// Waits until everything that any thread or process wrote to this file before the call is on
    /// the device: data and metadata. Calls that wait at the same time share an `fsync`.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time; other calls that wait are not disturbed.
    ///
    /// # Errors
    /// The error of `fsync`; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-sync-{}", std::process::id()));
    /// use upshift::fs::File;
    ///
    /// let file = File::create(&path).await?;
    /// file.write_all_at("must survive a crash", 0).await.0?;
    /// file.sync_all().await?;
    /// assert_eq!(file.len().await?, 20);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn sync_all(&self) -> io::Result<()> {
        sync::sync(&self.fd, true).await
    }

    /// Waits until the data is on the device; see [`sync_all`](File::sync_all).
    ///
    /// # Errors
    /// The error of `fdatasync`; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-datasync-{}", std::process::id()));
    /// use upshift::fs::File;
    ///
    /// let log = File::create(&path).await?;
    /// for record in 0..3 {
    ///     log.write_all_at("a record\n", record * 9).await.0?;
    ///     log.sync_data().await?; // Only now may the record be acknowledged.
    /// }
    /// assert_eq!(log.len().await?, 27);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn sync_data(&self) -> io::Result<()> {
        sync::sync(&self.fd, false).await
    }

    /// Returns length, kind, times, owner and permissions.
    ///
    /// # Errors
    /// The error of `statx`; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let root = upshift::fs::File::open("/").await?;
    /// assert!(root.metadata().await?.is_dir());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn metadata(&self) -> io::Result<Metadata> {
        Ok(Metadata::new(
            *start(op::Statx::from_fd(self.fd.clone()))?.await?,
        ))
    }

    /// Truncates the file, or extends it by a hole, to `length` bytes.
    ///
    /// # Errors
    /// The error of `ftruncate`; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-setlen-{}", std::process::id()));
    /// use upshift::fs::{self, File};
    ///
    /// let file = File::create(&path).await?;
    /// file.write_all_at("hello", 0).await.0?;
    /// file.set_len(2).await?;
    /// assert_eq!(fs::read(&path).await?, b"he");
    /// file.set_len(4).await?;
    /// assert_eq!(fs::read(&path).await?, b"he\0\0");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
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
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-fchmod-{}", std::process::id()));
    /// use std::{fs::Permissions, os::unix::fs::PermissionsExt};
    /// use upshift::fs::File;
    ///
    /// let file = File::create(&path).await?;
    /// file.set_permissions(Permissions::from_mode(0o640)).await?;
    /// assert_eq!(file.metadata().await?.mode() & 0o777, 0o640);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        let file = std::fs::File::from(self.fd.as_fd().try_clone_to_owned()?);
        blocking::run(move || file.set_permissions(permissions)).await
    }

    /// Converts the file into a stream, read and written from front to back, with a position of
    /// its own that starts at 0.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-stream2-{}", std::process::id()));
    /// use upshift::fs::{self, File};
    /// use upshift::io::AsyncReadExt;
    ///
    /// fs::write(&path, "from front to back").await?;
    /// let mut stream = File::open(&path).await?.into_stream();
    /// let mut text = String::new();
    /// stream.read_to_string(&mut text).await?;
    /// assert_eq!((text.as_str(), stream.position()), ("from front to back", 18));
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn into_stream(self) -> FileStream {
        FileStream::new(self)
    }

    /// Returns the length of the file in bytes as this machine knows it, without a request to the
    /// server of a network file system. Returns `length` if the kernel gives no answer.
    pub(super) fn known_len(&self, length: u64) -> u64 {
        // SAFETY: all zeroes is a valid `statx`. The structure is valid for writes during the call,
        // and the path ends with a NUL.
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
    /// The error of `statx`; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-len-{}", std::process::id()));
    /// let file = upshift::fs::File::create(&path).await?;
    /// assert_eq!(file.len().await?, 0);
    /// file.write_all_at("hello", 0).await.0?;
    /// assert_eq!(file.len().await?, 5);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
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
