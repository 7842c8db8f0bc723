//! Pipes between processes or within a process.
//!
//! Reads and writes are system calls made at once, which do not wait, because this end of the pipe
//! is non-blocking (`O_NONBLOCK`). When there is nothing to read, or no room, a poll operation on
//! the ring waits. The other end, in a child for instance, has flags of its own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::Stdio;
use std::task::{Context, Poll};

use super::{Descriptor, Readiness, Sink, Source, impl_read, impl_write};

/// Number of bytes read ahead.
const BUFFER_BYTES: usize = 8 << 10;

fn set_nonblocking(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let number = fd.as_raw_fd();
    // SAFETY: `F_GETFL` takes no pointer.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = if on {
        flags | libc::O_NONBLOCK
    } else {
        flags & !libc::O_NONBLOCK
    };
    // SAFETY: `F_SETFL` takes no pointer.
    if unsafe { libc::fcntl(number, libc::F_SETFL, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn io_result(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Creates a pipe. Bytes written to one end are read from the other end.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::io::{self, AsyncReadExt, AsyncWriteExt};
///
/// let (mut reader, mut writer) = io::pipe()?;
/// writer.write_all(b"hello").await?;
/// drop(writer);
/// let mut text = String::new();
/// reader.read_to_string(&mut text).await?;
/// assert_eq!(text, "hello");
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
///
/// # Errors
/// When no descriptor is left.
pub fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    Ok((
        PipeReader::from_owned_fd(reader.into())?,
        PipeWriter::from_owned_fd(writer.into())?,
    ))
}

/// The read end of a pipe.
///
/// ```
/// use upshift::io::{AsyncReadExt, AsyncWriteExt};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (mut reader, mut writer) = upshift::io::pipe()?;
/// writer.write_all(b"hello").await?;
/// drop(writer);
/// let mut text = String::new();
/// reader.read_to_string(&mut text).await?; // Up to the end.
/// assert_eq!(text, "hello");
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct PipeReader {
    // Dropped in this order: first the operation, then the descriptor.
    ready: Readiness,
    fd: Descriptor,
    data: Box<[u8]>,
    start: usize,
    end: usize,
}

impl PipeReader {
    /// Takes over the end of a pipe, a FIFO, or any descriptor that can be polled. Makes the open
    /// file non-blocking, for all its users.
    ///
    /// # Errors
    /// The error of `fcntl`.
    ///
    /// ```
    /// use std::io::Write;
    /// use upshift::io::{AsyncReadExt, PipeReader};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (reader, mut writer) = std::io::pipe()?;
    /// let mut reader = PipeReader::from_owned_fd(reader.into())?;
    /// writer.write_all(b"hello")?;
    /// let mut buffer = [0; 5];
    /// reader.read_exact(&mut buffer).await?;
    /// assert_eq!(&buffer, b"hello");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn from_owned_fd(fd: OwnedFd) -> io::Result<PipeReader> {
        set_nonblocking(fd.as_fd(), true)?;
        Ok(PipeReader {
            ready: Readiness::readable(),
            fd: Descriptor::new(fd),
            data: Box::default(),
            start: 0,
            end: 0,
        })
    }

    /// Returns the descriptor, in blocking mode. Bytes that have been read ahead are lost.
    ///
    /// # Errors
    /// The error of `fcntl`.
    pub fn into_owned_fd(mut self) -> io::Result<OwnedFd> {
        self.ready = Readiness::readable();
        into_blocking(self.fd)
    }

    pub(crate) fn into_descriptor(self) -> Descriptor {
        self.fd
    }
}

/// The write end of a pipe. When it is dropped ([closing](crate::net#closing)) the reader reads
/// the end of the file.
///
/// ```
/// use upshift::io::{AsyncReadExt, AsyncWriteExt};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (mut reader, mut writer) = upshift::io::pipe()?;
/// let writer_handle = upshift::task::spawn(async move {
///     writer.write_all(&[7; 100_000]).await // More than a pipe holds.
/// });
/// let mut bytes = Vec::new();
/// reader.read_to_end(&mut bytes).await?;
/// writer_handle.await??;
/// assert_eq!(bytes.len(), 100_000);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct PipeWriter {
    // Dropped in this order: first the operation, then the descriptor.
    ready: Readiness,
    fd: Descriptor,
}

impl PipeWriter {
    /// Takes over the end of a pipe, a FIFO, or any descriptor that can be polled. Makes the open
    /// file non-blocking, for all its users.
    ///
    /// # Errors
    /// The error of `fcntl`.
    pub fn from_owned_fd(fd: OwnedFd) -> io::Result<PipeWriter> {
        set_nonblocking(fd.as_fd(), true)?;
        Ok(PipeWriter {
            ready: Readiness::writable(),
            fd: Descriptor::new(fd),
        })
    }

    /// Returns the descriptor, in blocking mode.
    ///
    /// # Errors
    /// The error of `fcntl`.
    pub fn into_owned_fd(mut self) -> io::Result<OwnedFd> {
        self.ready = Readiness::writable();
        into_blocking(self.fd)
    }

    pub(crate) fn into_descriptor(self) -> Descriptor {
        self.fd
    }
}

fn into_blocking(fd: Descriptor) -> io::Result<OwnedFd> {
    set_nonblocking(fd.as_fd(), false)?;
    match fd.into_fd().try_into_owned() {
        Ok(fd) => Ok(fd),
        // A wait that has just been cancelled still holds the descriptor.
        Err(shared) => shared.as_fd().try_clone_to_owned(),
    }
}

impl Source for PipeReader {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.start == self.end {
            if self.data.is_empty() {
                self.data = vec![0; BUFFER_BYTES].into_boxed_slice();
            }
            let data = &mut self.data;
            let read = self.ready.poll_io(cx, &self.fd, |fd| {
                // SAFETY: `data` is valid for writes of its length.
                io_result(unsafe {
                    libc::read(fd.as_raw_fd(), data.as_mut_ptr().cast(), data.len())
                })
            });
            (self.start, self.end) = (0, std::task::ready!(read)?);
        }
        Poll::Ready(Ok(&self.data[self.start..self.end]))
    }

    fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
    }
}

impl Sink for PipeWriter {
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.ready.poll_io(cx, &self.fd, |fd| {
            // SAFETY: `bytes` is valid for reads of its length.
            io_result(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })
        })
    }

    fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Does nothing, because only a drop closes the end.
    fn poll_close(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl_read!(PipeReader);
impl_write!(PipeWriter);

macro_rules! descriptor {
    ($type:ty) => {
        impl AsFd for $type {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.fd.as_fd()
            }
        }

        impl AsRawFd for $type {
            fn as_raw_fd(&self) -> RawFd {
                self.fd.as_raw_fd()
            }
        }

        /// Converts the end for a child process, and puts it into blocking mode, as programs
        /// expect.
        impl TryFrom<$type> for Stdio {
            type Error = io::Error;

            fn try_from(end: $type) -> io::Result<Stdio> {
                end.into_owned_fd().map(Stdio::from)
            }
        }
    };
}

descriptor!(PipeReader);
descriptor!(PipeWriter);
