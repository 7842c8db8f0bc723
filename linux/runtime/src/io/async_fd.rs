//! Readiness of any descriptor.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::Descriptor;
use super::readiness::Readiness;

/// A descriptor whose readiness can be awaited. It is meant for descriptors of another library, or
/// of a kind that this crate does not know (a netlink socket, an eventfd, an epoll set, a device).
///
/// A wait is one poll operation of the ring, at the level of the coroutine; several coroutines may
/// wait, in both directions. A wait ends at once if the descriptor *is* ready. So a caller that
/// waits for the next change first makes calls until a call returns
/// [`WouldBlock`](io::ErrorKind::WouldBlock). [`read_with`](AsyncFd::read_with) and
/// [`write_with`](AsyncFd::write_with) do that, with one system call per transfer that need not
/// wait. The descriptor should be non-blocking. Dropping the `AsyncFd` closes it
/// ([closing](crate::net#closing)).
///
/// ```
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
///
/// upshift::Runtime::new()?.block_on(async {
///     let (mut here, there) = UnixStream::pair()?;
///     there.set_nonblocking(true)?;
///     let there = upshift::io::AsyncFd::new(there);
///     here.write_all(b"hi")?;
///     let mut text = [0; 2];
///     let count = there
///         .read_with(|fd| (&UnixStream::from(fd.try_clone_to_owned()?)).read(&mut text))
///         .await?;
///     assert_eq!(&text[..count], b"hi");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct AsyncFd {
    fd: Descriptor,
}

impl AsyncFd {
    /// Takes ownership of a descriptor.
    ///
    /// ```
    /// use std::os::fd::{AsFd, AsRawFd};
    /// use upshift::io::AsyncFd;
    ///
    /// let (reader, _writer) = std::io::pipe()?;
    /// let number = reader.as_raw_fd();
    /// let descriptor = AsyncFd::new(reader);
    /// assert_eq!(descriptor.as_fd().as_raw_fd(), number);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn new(fd: impl Into<OwnedFd>) -> AsyncFd {
        AsyncFd {
            fd: Descriptor::new(fd),
        }
    }

    pub(crate) fn into_descriptor(self) -> Descriptor {
        self.fd
    }

    /// Waits until the descriptor can be read from, or has an end or an error to report.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time.
    ///
    /// # Errors
    /// The error with which the kernel answers the poll; also fails outside a runtime.
    ///
    /// ```
    /// use std::io::Write;
    /// use std::time::Duration;
    /// use upshift::{io::AsyncFd, time::timeout};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (reader, mut writer) = std::io::pipe()?;
    /// let reader = AsyncFd::new(reader);
    /// assert!(timeout(Duration::from_millis(1), reader.readable()).await.is_err());
    /// writer.write_all(b"hello")?;
    /// reader.readable().await?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn readable(&self) -> io::Result<()> {
        let mut readiness = Readiness::readable();
        poll_fn(|cx| readiness.poll_ready(cx, &self.fd)).await
    }

    /// Waits until the descriptor can be written to, or has an error to report.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time.
    ///
    /// # Errors
    /// The errors of [`readable`](AsyncFd::readable).
    ///
    /// ```
    /// use std::io::Read;
    /// use upshift::io::AsyncFd;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (mut reader, writer) = std::io::pipe()?;
    /// let writer = AsyncFd::new(writer);
    /// writer.writable().await?; // There is room.
    /// drop(writer);
    /// assert_eq!(reader.read(&mut [0; 8])?, 0);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn writable(&self) -> io::Result<()> {
        let mut readiness = Readiness::writable();
        poll_fn(|cx| readiness.poll_ready(cx, &self.fd)).await
    }

    /// Calls `read` until it returns something other than *would block*, and waits in between.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time, because no call has succeeded until the future is
    /// ready.
    ///
    /// # Errors
    /// The errors of `read`, and of [`readable`](AsyncFd::readable).
    pub async fn read_with<R>(
        &self,
        mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut readiness = Readiness::readable();
        poll_fn(|cx| readiness.poll_io(cx, &self.fd, |fd| read(fd.as_fd()))).await
    }

    /// Calls `write` until it returns something other than *would block*, and waits in between.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time, because no call has succeeded until the future is
    /// ready.
    ///
    /// # Errors
    /// The errors of `write`, and of [`readable`](AsyncFd::readable).
    ///
    /// ```
    /// use std::fs::File;
    /// use std::io::{Read, Write};
    /// use upshift::io::AsyncFd;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (mut reader, writer) = std::io::pipe()?;
    /// let writer = AsyncFd::new(writer);
    /// let write = |fd: std::os::fd::BorrowedFd<'_>| {
    ///     File::from(fd.try_clone_to_owned()?).write(b"hello")
    /// };
    /// assert_eq!(writer.write_with(write).await?, 5);
    /// let mut buffer = [0; 5];
    /// reader.read_exact(&mut buffer)?;
    /// assert_eq!(&buffer, b"hello");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn write_with<R>(
        &self,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut readiness = Readiness::writable();
        poll_fn(|cx| readiness.poll_io(cx, &self.fd, |fd| write(fd.as_fd()))).await
    }
}

impl AsFd for AsyncFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for AsyncFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
