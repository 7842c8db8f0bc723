//! Pipes, between processes or within one.
//!
//! The ends do not wait (`O_NONBLOCK`; the other end of a pipe, in a child, say, has
//! flags of its own): reads and writes are system calls made at once, and a poll
//! operation on the ring waits when there is nothing to read, or no room.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::Stdio;
use std::task::{Context, Poll};

use super::{Descriptor, Readiness, Sink, Source, impl_read, impl_write};

/// Bytes read ahead.
const SIZE: usize = 8 << 10;

fn set_nonblocking(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let number = fd.as_raw_fd();
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = match on {
        true => flags | libc::O_NONBLOCK,
        false => flags & !libc::O_NONBLOCK,
    };
    // SAFETY: no pointers.
    if unsafe { libc::fcntl(number, libc::F_SETFL, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn outcome(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A pipe: what is written to the one end is read from the other.
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

/// The end of a pipe to read from.
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
    /// Takes over the end of a pipe, a FIFO, or anything that can be polled; makes it
    /// non-blocking, for all that share the open file.
    ///
    /// # Errors
    /// What `fcntl` answers.
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

    /// The descriptor, in blocking mode. What has been read ahead is lost.
    ///
    /// # Errors
    /// What `fcntl` answers.
    pub fn into_owned_fd(mut self) -> io::Result<OwnedFd> {
        self.ready = Readiness::readable();
        into_blocking(self.fd)
    }

    pub(crate) fn into_descriptor(self) -> Descriptor {
        self.fd
    }
}

/// The end of a pipe to write to. The reader sees the end of the file when it is
/// dropped ([closing](crate::net#closing)).
#[derive(Debug)]
pub struct PipeWriter {
    // As above.
    ready: Readiness,
    fd: Descriptor,
}

impl PipeWriter {
    /// Takes over the end of a pipe, a FIFO, or anything that can be polled; makes it
    /// non-blocking, for all that share the open file.
    ///
    /// # Errors
    /// What `fcntl` answers.
    pub fn from_owned_fd(fd: OwnedFd) -> io::Result<PipeWriter> {
        set_nonblocking(fd.as_fd(), true)?;
        Ok(PipeWriter {
            ready: Readiness::writable(),
            fd: Descriptor::new(fd),
        })
    }

    /// The descriptor, in blocking mode.
    ///
    /// # Errors
    /// What `fcntl` answers.
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
        // A wait that was just given up still holds it.
        Err(shared) => shared.as_fd().try_clone_to_owned(),
    }
}

impl Source for PipeReader {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.start == self.end {
            if self.data.is_empty() {
                self.data = vec![0; SIZE].into_boxed_slice();
            }
            let data = &mut self.data;
            let read = self.ready.poll_io(cx, &self.fd, |fd| {
                // SAFETY: the buffer is valid for its length.
                outcome(unsafe { libc::read(fd.as_raw_fd(), data.as_mut_ptr().cast(), data.len()) })
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
            // SAFETY: the bytes are valid for their length.
            outcome(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })
        })
    }

    fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Only dropping it closes it.
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

        /// For a child: in blocking mode, as programs expect.
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
