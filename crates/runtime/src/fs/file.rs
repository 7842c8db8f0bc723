//! An open file: reads and writes by position.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use upshift_ring::{Fd, IoBuf, IoBufMut, op};

use super::{FileStream, Metadata, OpenOptions, current_ioprio};
use crate::blocking;
use crate::net::{start, transfer};

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
    pub(super) fn new(fd: Fd) -> File {
        File { fd }
    }

    pub(super) fn fd(&self) -> &Fd {
        &self.fd
    }

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

    /// Writes what a short write has left.
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
            (result, rest) = self.write_at(rest, offset + written as u64).await;
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), rest.into_inner()),
                Ok(count) => written += count,
                Err(error) => return (Err(error), rest.into_inner()),
            }
            rest = rest.into_inner().slice(written..length);
        }
        (Ok(()), rest.into_inner())
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

    /// Length, kind, times, owner and permissions.
    ///
    /// # Errors
    /// What `statx` answers; and outside a runtime.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        Ok(Metadata::new(
            *start(op::Statx::of(self.fd.clone()))?.await?,
        ))
    }

    /// Cuts the file off, or lengthens it by a hole, to `length` bytes.
    ///
    /// # Errors
    /// What `ftruncate` answers; and outside a runtime.
    pub async fn set_len(&self, length: u64) -> io::Result<()> {
        match start(op::Ftruncate::new(self.fd.clone(), length))?.await {
            // Before Linux 6.9 the ring does not know it.
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

    /// The file as something to read and write from front to back, with a position of
    /// its own, starting at 0.
    #[must_use]
    pub fn into_stream(self) -> FileStream {
        FileStream::new(self)
    }

    /// The length of the file in bytes.
    ///
    /// # Errors
    /// What `statx` answers; and outside a runtime.
    pub async fn len(&self) -> io::Result<u64> {
        Ok(start(op::Statx::of(self.fd.clone()))?.await?.stx_size)
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
