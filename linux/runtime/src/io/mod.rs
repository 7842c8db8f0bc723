//! Reading and writing with the traits of the ecosystem.
//!
//! Sockets, files and pipes implement [`AsyncRead`], [`AsyncBufRead`] and [`AsyncWrite`] of
//! `futures-io` and, with the feature `tokio-io`, the same traits of tokio.
//!
//! A trait's call borrows a buffer for one poll, and the kernel must not use the buffer later. So
//! each direction has memory of its own:
//!
//! | | reading | writing |
//! |---|---|---|
//! | sockets | the vCPU's receive buffers: one copy, no system call | `send` without waiting |
//! | pipes ([`pipe`]) | 8 KiB, allocated by the first read | `write` without waiting |
//! | files ([`FileStream`]) | 64 KiB, filled by the ring | 64 KiB, written by the ring; flush it |
//!
//! An idle connection holds no memory ([`TcpStream::recv`]). When a socket or a pipe is full, a
//! poll operation waits for room.
//!
//! A dropped future loses nothing: data that had arrived is there for the next read, and bytes
//! that a write has reported as written are not written twice.
//!
//! The types' own calls take buffers and return them (`stream.read(vec).await`). They copy nothing,
//! and one system call submits the writes of several coroutines. Where such a call has the name of
//! a trait's method, name the trait to call the method: `AsyncReadExt::read(&mut stream, &mut
//! bytes)`, or wrap the stream in a [`BufReader`].
//!
//! ```
//! # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
//! use upshift::io::{AsyncBufReadExt, AsyncWriteExt, BufWriter, StreamExt};
//! use upshift::net::{TcpListener, TcpStream};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let client = TcpStream::connect(listener.local_addr()?).await?;
//! let (server, _) = listener.accept().await?;
//!
//! let mut out = BufWriter::new(client);
//! out.write_all(b"one\ntwo\n").await?;
//! out.close().await?;
//!
//! let mut server = server;
//! let mut line = String::new();
//! server.read_line(&mut line).await?;
//! assert_eq!(line, "one\n");
//! let mut lines = server.lines();
//! assert_eq!(lines.next().await.transpose()?.as_deref(), Some("two"));
//! assert!(lines.next().await.is_none());
//! # std::io::Result::Ok(()) }).unwrap();
//! ```
//!
//! [`TcpStream::recv`]: crate::net::TcpStream::recv
//! [`FileStream`]: crate::fs::FileStream

mod adapter;
mod async_fd;
mod copy;
mod descriptor;
mod pipe;
mod readiness;

pub use async_fd::AsyncFd;
pub use copy::{copy, copy_bidirectional, copy_buf};
pub use descriptor::{Close, close};
pub use pipe::{PipeReader, PipeWriter, pipe};

pub use futures_lite::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncSeek, AsyncSeekExt, AsyncWrite,
    AsyncWriteExt, BufReader, BufWriter, Cursor, Lines, ReadHalf, Split, WriteHalf, empty, repeat,
    sink, split,
};
pub use futures_lite::stream::{Stream, StreamExt};

pub(crate) use adapter::{
    Sink, Source, buffered_methods, impl_read, impl_write, poll_copy, write_methods,
};
pub(crate) use descriptor::Descriptor;
pub(crate) use readiness::Readiness;
