//! A TCP connection and its halves.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use socket2::SockRef;
use upshift_ring::{Fd, IoBuf, IoBufMut, RecvBuf, RecvMulti, op};

use super::{TcpSocket, transfer};
use crate::context;
use crate::coop;

/// The receiving side: what has been armed, and what of it is left over.
struct Reader {
    fd: Fd,
    armed: Option<RecvMulti>,
    rest: RecvBuf,
}

impl Reader {
    fn new(fd: Fd) -> Reader {
        Reader {
            fd,
            armed: None,
            rest: RecvBuf::empty(),
        }
    }

    async fn recv(&mut self) -> io::Result<RecvBuf> {
        if !self.rest.is_empty() {
            return Ok(std::mem::replace(&mut self.rest, RecvBuf::empty()));
        }
        poll_fn(|cx| {
            if coop::poll_proceed(cx).is_pending() {
                return Poll::Pending;
            }
            self.poll_armed(cx)
        })
        .await
    }

    fn poll_armed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        loop {
            let armed = match &mut self.armed {
                Some(armed) => armed,
                None => self.armed.insert(context::try_with(|worker| {
                    worker.recv_multi(self.fd.clone())
                })?),
            };
            match armed.poll_next(cx) {
                // The vCPU it was armed on has been released: on to this one's.
                Poll::Ready(Err(error)) if super::is_cancelled(&error) => self.armed = None,
                other => return other,
            }
        }
    }

    async fn read<B: IoBufMut>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        while self.armed.is_none() && self.rest.is_empty() {
            let result;
            (result, buffer) = transfer!(op::Recv::new(self.fd.clone(), buffer), buffer);
            match result {
                Err(error) if super::is_cancelled(&error) => {}
                result => return (result, buffer),
            }
        }
        let mut data = match self.recv().await {
            Ok(data) => data,
            Err(error) => return (Err(error), buffer),
        };
        let count = data.len().min(buffer.io_capacity());
        // SAFETY: both are valid for `count` bytes, and different memory; the
        // bytes are written before they are declared filled.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.io_mut_ptr(), count);
            buffer.set_filled(count);
        }
        data.advance(count);
        self.rest = data;
        (Ok(count), buffer)
    }
}

async fn write<B: IoBuf>(fd: &Fd, mut buffer: B) -> (io::Result<usize>, B) {
    loop {
        let result;
        (result, buffer) = transfer!(op::Send::new(fd.clone(), buffer), buffer);
        match result {
            Err(error) if super::is_cancelled(&error) => {}
            result => return (result, buffer),
        }
    }
}

async fn write_all<B: IoBuf>(fd: &Fd, buffer: B) -> (io::Result<()>, B) {
    let length = buffer.io_len();
    if length == 0 {
        return (Ok(()), buffer);
    }
    if let Some(sent) = super::send_past_the_ring(fd, &buffer) {
        return match sent {
            sent if sent == length => (Ok(()), buffer),
            sent => write_rest(fd, buffer, sent).await,
        };
    }
    let (result, buffer) = transfer!(op::Send::new(fd.clone(), buffer).all(), buffer);
    match result {
        Ok(sent) if sent == length => (Ok(()), buffer),
        Ok(sent) => write_rest(fd, buffer, sent).await,
        Err(error) if super::is_cancelled(&error) => write_rest(fd, buffer, 0).await,
        Err(error) => (Err(error), buffer),
    }
}

/// Goes on after a write of less than everything: the connection has met an error,
/// which the next write reports, or the vCPU that was writing has been released,
/// or the buffer is larger than the kernel takes at once.
#[cold]
async fn write_rest<B: IoBuf>(fd: &Fd, buffer: B, mut sent: usize) -> (io::Result<()>, B) {
    let length = buffer.io_len();
    let mut rest = buffer.slice(sent..length);
    while sent < length {
        let result;
        (result, rest) = transfer!(op::Send::new(fd.clone(), rest).all(), rest);
        match result {
            Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), rest.into_inner()),
            Ok(count) => sent += count,
            Err(error) if super::is_cancelled(&error) => {}
            Err(error) => return (Err(error), rest.into_inner()),
        }
        rest = rest.into_inner().slice(sent..length);
    }
    (Ok(()), rest.into_inner())
}

async fn write_vectored<B: IoBuf>(fd: &Fd, mut buffers: Vec<B>) -> (io::Result<usize>, Vec<B>) {
    loop {
        let result;
        (result, buffers) = transfer!(op::SendVectored::new(fd.clone(), buffers), buffers);
        match result {
            Err(error) if super::is_cancelled(&error) => {}
            result => return (result, buffers),
        }
    }
}

async fn write_all_vectored<B: IoBuf>(fd: &Fd, buffers: Vec<B>) -> (io::Result<()>, Vec<B>) {
    let length = buffers.iter().map(IoBuf::io_len).sum();
    if length == 0 {
        return (Ok(()), buffers);
    }
    let (result, buffers) = transfer!(op::SendVectored::new(fd.clone(), buffers).all(), buffers);
    let mut sent = match result {
        Ok(sent) if sent == length => return (Ok(()), buffers),
        Ok(sent) => sent,
        Err(error) if super::is_cancelled(&error) => 0,
        Err(error) => return (Err(error), buffers),
    };
    // As in `write_rest`, buffer by buffer.
    let mut done = Vec::with_capacity(buffers.len());
    let mut failed = None;
    for buffer in buffers {
        let skip = sent.min(buffer.io_len());
        sent -= skip;
        if failed.is_some() {
            done.push(buffer);
            continue;
        }
        let (result, buffer) = write_rest(fd, buffer, skip).await;
        failed = result.err();
        done.push(buffer);
    }
    (failed.map_or(Ok(()), Err), done)
}

/// A TCP connection.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::{Priority, net::{TcpListener, TcpStream}};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let echo = upshift::spawn(async move {
///     let (mut stream, _) = listener.accept().await?;
///     loop {
///         let data = stream.recv().await?;
///         if data.is_empty() {
///             return std::io::Result::Ok(());
///         }
///         stream.write_all(data.to_vec()).await.0?;
///     }
/// }, Priority::Inherit);
///
/// let mut stream = TcpStream::connect(address).await?;
/// stream.write_all("ping").await.0?;
/// let (count, buffer) = stream.read(vec![0; 64]).await;
/// assert_eq!(&buffer[..count?], b"ping");
/// drop(stream);
/// echo.await.unwrap()?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub struct TcpStream {
    reader: Reader,
}

impl TcpStream {
    pub(crate) fn new(fd: Fd) -> TcpStream {
        TcpStream {
            reader: Reader::new(fd),
        }
    }

    pub(super) fn fd(&self) -> &Fd {
        &self.reader.fd
    }

    /// Connects. Tries the addresses in order.
    ///
    /// # Errors
    /// That of the last address tried; and outside a runtime.
    pub async fn connect(addresses: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to");
        let addresses: Vec<_> = addresses.to_socket_addrs()?.collect();
        for address in addresses {
            match TcpSocket::for_address(address)?.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Takes over a connection of the standard library.
    ///
    /// # Errors
    /// If it cannot be put into the mode the ring needs.
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<TcpStream> {
        stream.set_nonblocking(false)?;
        Ok(TcpStream::new(Fd::new(OwnedFd::from(stream))))
    }

    /// Waits for data, in one of the vCPU's own buffers. Empty: the peer has
    /// finished. Dropping the future loses nothing.
    ///
    /// A buffer goes back to the kernel when it is dropped; do not hoard them.
    ///
    /// # Errors
    /// `ConnectionReset` and the like; and outside a runtime.
    pub async fn recv(&mut self) -> io::Result<RecvBuf> {
        self.reader.recv().await
    }

    /// Reads into `buffer` from its first byte on, at most its capacity. 0 bytes:
    /// the peer has finished. Dropping the future may lose data; use
    /// [`recv`](TcpStream::recv) where that matters.
    ///
    /// # Errors
    /// `ConnectionReset` and the like; and outside a runtime.
    pub async fn read<B: IoBufMut>(&mut self, buffer: B) -> (io::Result<usize>, B) {
        self.reader.read(buffer).await
    }

    /// Writes some of `buffer`.
    ///
    /// # Errors
    /// `BrokenPipe`, `ConnectionReset`, …; and outside a runtime.
    pub async fn write<B: IoBuf>(&mut self, buffer: B) -> (io::Result<usize>, B) {
        write(self.fd(), buffer).await
    }

    /// Writes all of `buffer`. A peer that does not read makes this wait.
    ///
    /// # Errors
    /// As [`write`](TcpStream::write); an unknown part may have been sent.
    pub async fn write_all<B: IoBuf>(&mut self, buffer: B) -> (io::Result<()>, B) {
        write_all(self.fd(), buffer).await
    }

    /// Writes some of several buffers, at most 1024, in one operation.
    ///
    /// # Errors
    /// As [`write`](TcpStream::write).
    pub async fn write_vectored<B: IoBuf>(
        &mut self,
        buffers: Vec<B>,
    ) -> (io::Result<usize>, Vec<B>) {
        write_vectored(self.fd(), buffers).await
    }

    /// Writes all of several buffers, at most 1024, in one operation.
    ///
    /// # Errors
    /// As [`write_all`](TcpStream::write_all).
    pub async fn write_all_vectored<B: IoBuf>(
        &mut self,
        buffers: Vec<B>,
    ) -> (io::Result<()>, Vec<B>) {
        write_all_vectored(self.fd(), buffers).await
    }

    /// Two halves that borrow the connection.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        let fd = self.reader.fd.clone();
        (
            ReadHalf {
                reader: &mut self.reader,
            },
            WriteHalf {
                fd,
                stream: std::marker::PhantomData,
            },
        )
    }

    /// Two halves for two coroutines. The connection closes when both are gone;
    /// the write half ends its direction when it is dropped.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let fd = self.reader.fd.clone();
        (
            OwnedReadHalf {
                reader: self.reader,
            },
            OwnedWriteHalf { fd },
        )
    }
}

/// The reading half of a connection, borrowed.
pub struct ReadHalf<'a> {
    reader: &'a mut Reader,
}

/// The writing half of a connection, borrowed.
pub struct WriteHalf<'a> {
    fd: Fd,
    stream: std::marker::PhantomData<&'a mut TcpStream>,
}

/// The reading half of a connection.
pub struct OwnedReadHalf {
    reader: Reader,
}

/// The writing half of a connection.
pub struct OwnedWriteHalf {
    fd: Fd,
}

macro_rules! read_half {
    ($half:ty) => {
        impl $half {
            /// As [`TcpStream::recv`].
            ///
            /// # Errors
            /// As there.
            pub async fn recv(&mut self) -> io::Result<RecvBuf> {
                self.reader.recv().await
            }

            /// As [`TcpStream::read`].
            ///
            /// # Errors
            /// As there.
            pub async fn read<B: IoBufMut>(&mut self, buffer: B) -> (io::Result<usize>, B) {
                self.reader.read(buffer).await
            }
        }

        impl fmt::Debug for $half {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple("ReadHalf").field(&self.reader.fd).finish()
            }
        }
    };
}

macro_rules! write_half {
    ($half:ty) => {
        impl $half {
            /// As [`TcpStream::write`].
            ///
            /// # Errors
            /// As there.
            pub async fn write<B: IoBuf>(&mut self, buffer: B) -> (io::Result<usize>, B) {
                write(&self.fd, buffer).await
            }

            /// As [`TcpStream::write_all`].
            ///
            /// # Errors
            /// As there.
            pub async fn write_all<B: IoBuf>(&mut self, buffer: B) -> (io::Result<()>, B) {
                write_all(&self.fd, buffer).await
            }

            /// As [`TcpStream::write_vectored`].
            ///
            /// # Errors
            /// As there.
            pub async fn write_vectored<B: IoBuf>(
                &mut self,
                buffers: Vec<B>,
            ) -> (io::Result<usize>, Vec<B>) {
                write_vectored(&self.fd, buffers).await
            }

            /// As [`TcpStream::write_all_vectored`].
            ///
            /// # Errors
            /// As there.
            pub async fn write_all_vectored<B: IoBuf>(
                &mut self,
                buffers: Vec<B>,
            ) -> (io::Result<()>, Vec<B>) {
                write_all_vectored(&self.fd, buffers).await
            }

            /// Tells the peer that nothing more will come.
            ///
            /// # Errors
            /// `NotConnected` when the peer has gone.
            pub fn shutdown(&self) -> io::Result<()> {
                SockRef::from(&self.fd).shutdown(Shutdown::Write)
            }
        }

        impl fmt::Debug for $half {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple("WriteHalf").field(&self.fd).finish()
            }
        }
    };
}

read_half!(ReadHalf<'_>);
read_half!(OwnedReadHalf);
write_half!(WriteHalf<'_>);
write_half!(OwnedWriteHalf);

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        // The peer may have gone already.
        let _ = self.shutdown();
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpStream").field(self.fd()).finish()
    }
}
